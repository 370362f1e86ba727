"""An attacker of a TLS port, as a process of its own: MODE PORT AUTHORITY SECONDS [CERTIFICATE KEY HEADER].

It comes from six addresses of loopback, holds as many connections as it gets or makes as many as it can, and says at
the end how many it made, and the most that lasted for a second: {"most": ..., "made": ...}.
"""

import json
import socket
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import suppress

ADDRESSES = 6
WANTED = 600
HEAD = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\n"


class Flood:
    """One attacker, for so many seconds."""

    def __init__(self, port: int, authority: str, seconds: float) -> None:
        self.port, self.end = port, time.monotonic() + seconds
        self.trust = ssl.create_default_context(cafile=authority)
        self.held: list[socket.socket] = []
        self.since: dict[socket.socket, float] = {}
        self.most = self.made = 0

    def connect(self) -> socket.socket:
        """A connection from the next of the addresses."""
        self.made += 1
        connection = socket.socket()
        connection.settimeout(2.0)
        connection.bind((f"127.0.0.{20 + self.made % ADDRESSES}", 0))
        connection.connect(("127.0.0.1", self.port))
        return connection

    def idle(self) -> socket.socket:
        """Not a byte."""
        return self.connect()

    def stall(self) -> socket.socket:
        """Half of a ClientHello."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        shaking = self.trust.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with suppress(ssl.SSLWantReadError):
            shaking.do_handshake()
        connection = self.connect()
        connection.sendall(outgoing.read()[:100])
        return connection

    def half(self) -> socket.socket:
        """TLS without a certificate, and half of a request."""
        connection = self.trust.wrap_socket(self.connect(), server_hostname="localhost")
        connection.sendall(HEAD)
        return connection

    def hold(self, kind: Callable[[], socket.socket]) -> None:
        """Keep as many as it gets, and open others in the place of those that were closed."""
        while time.monotonic() < self.end:
            self.held, now = [each for each in self.held if _open(each)], time.monotonic()
            self.since = {each: self.since.get(each, now) for each in self.held}
            lasting = sum(now - since > 1.0 for since in self.since.values())
            self.most = max(self.most, lasting)
            for _ in range(min(60, WANTED - len(self.held))):
                try:
                    self.held.append(kind())
                except OSError:
                    continue
            time.sleep(0.05)

    def handshakes(self) -> None:
        """As many as it can."""
        while time.monotonic() < self.end:
            try:
                self.trust.wrap_socket(self.connect(), server_hostname="localhost").close()
            except OSError:
                continue

    def pipeline(self, certificate: str, key: str, header: str) -> None:
        """Of an enrolled party: requests without waiting for answers, over ten connections."""
        self.trust.load_cert_chain(certificate, key)
        request = HEAD + f"flwr-public-key: {header}\r\ncontent-length: 1\r\n\r\nx".encode()
        while time.monotonic() < self.end:
            while len(self.held) < 10:
                made: socket.socket = self.trust.wrap_socket(self.connect(), server_hostname="localhost")
                made.setblocking(False)
                self.held.append(made)
            for connection in list(self.held):
                try:
                    connection.send(request * 60)
                    connection.recv(2**18)
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                    continue
                except OSError:
                    self.held.remove(connection)
            time.sleep(0.001)


def _open(connection: socket.socket) -> bool:
    """Whether the other side has not closed it."""
    connection.setblocking(False)
    try:
        while connection.recv(2**16):
            pass
    except (ssl.SSLWantReadError, BlockingIOError):
        return True
    except OSError:
        return False
    return False


def main(mode: str, port: str, authority: str, seconds: str, *party: str) -> None:
    flood = Flood(int(port), authority, float(seconds))
    if mode == "pipeline":
        flood.pipeline(*party)
    elif mode == "handshakes":
        flood.handshakes()
    else:
        flood.hold({"idle": flood.idle, "stall": flood.stall, "half": flood.half}[mode])
    sys.stdout.write(json.dumps({"most": flood.most, "made": flood.made}))


if __name__ == "__main__":
    main(*sys.argv[1:])
