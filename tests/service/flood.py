"""Asks a service on this machine for draws as fast as it can, over TLS, from one loopback address, for some seconds.

    python flood.py PORT CERTIFICATE.pem pipelined|"one by one" SECONDS ADDRESS

It prints ``begun``, and at the end how many requests were sent.
"""

import contextlib
import ipaddress
import socket
import ssl
import sys
import time

DRAW = b"GET /v1/draw HTTP/1.1\r\nhost: x\r\n\r\n"
CONNECTIONS = 32


def connected(port: int, context: ssl.SSLContext, address: str) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(address, 0))
    return context.wrap_socket(plain, server_hostname="localhost")


def flood(port: int, context: ssl.SSLContext, address: str, *, at_once: int, until: float) -> int:
    """How many requests were sent, so many behind each other, on many connections."""
    sent, part, held = 0, DRAW * at_once, list[ssl.SSLSocket]()
    while time.monotonic() < until:
        while len(held) < CONNECTIONS and time.monotonic() < until:
            with contextlib.suppress(OSError):
                held.append(connected(port, context, address))
                held[-1].setblocking(False)
                sent += held[-1].send(part)
        for connection in list(held):
            try:
                while connection.recv(2**16):  # a reply, or a part of one
                    sent += connection.send(part)
                raise ConnectionError("it was ended")
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                continue
            except OSError:
                connection.close()
                held.remove(connection)
    return sent // len(DRAW)


def main() -> None:
    port, pem, how, seconds, address = sys.argv[1:]
    assert ipaddress.ip_address(address).is_loopback, "nothing but this machine is flooded"
    context = ssl.create_default_context(cafile=pem)
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    at_once, until = {"pipelined": 400, "one by one": 1}[how], time.monotonic() + float(seconds)
    sys.stdout.write(f"{flood(int(port), context, address, at_once=at_once, until=until)}\n")


if __name__ == "__main__":
    main()
