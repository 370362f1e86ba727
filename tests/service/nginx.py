"""nginx with the configuration for a service, on loopback, in a folder of the test."""

import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.nginx import running
from tests.service.listener import certificate


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@dataclass(frozen=True)
class Door:
    """Where it listens, before and behind its limit on connections; `folder` has its logs."""

    folder: Path
    port: int
    inner: int
    context: ssl.SSLContext

    def connected(self, address: str = "127.0.0.1", *, timeout: float = 5.0) -> ssl.SSLSocket:
        """A connection over TLS from an address of this machine."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=timeout, source_address=(address, 0))
        try:
            return self.context.wrap_socket(plain, server_hostname="localhost")
        except OSError:
            plain.close()
            raise

    def logged(self) -> bytes:
        """Everything that it wrote down."""
        return b"".join(path.read_bytes() for path in (self.folder / "logs").iterdir() if path.suffix != ".pid")


def changed(text: str, changes: Mapping[str, str]) -> str:
    """The configuration with each of these in the place of what it has."""
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


@contextmanager
def before_service(folder: Path, text: str, *, service: int, changes: Mapping[str, str]) -> Iterator[Door]:
    """The service's configuration, on free ports; `changes` are a test's own."""
    folder.mkdir()
    (folder / "logs").mkdir()
    port, inner, pem = free_port(), free_port(), certificate(folder)
    temporary = "".join(
        f"{kind}_temp_path tmp_{kind}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    here = {
        "user www-data;": "user root;" if os.geteuid() == 0 else "",
        "worker_processes auto;": "worker_processes 1;",
        "worker_rlimit_nofile 65536;": "",
        "/run/nginx.pid": "logs/nginx.pid",
        "/var/log/nginx/": "logs/",
        "listen 443 backlog=4096;": f"listen 127.0.0.1:{port} backlog=4096;",
        "listen [::]:443 ipv6only=on backlog=4096;": "",
        "127.0.0.1:8443": f"127.0.0.1:{inner}",
        "127.0.0.1:8000": f"127.0.0.1:{service}",
        "/etc/incrowd/server.crt": str(pem),
        "/etc/incrowd/server.key": str(pem),
        "http {": "http { " + temporary,
    }
    (folder / "nginx.conf").write_text(changed(changed(text, changes), here))
    with running(folder, port):
        yield Door(folder, port, inner, ssl.create_default_context(cafile=str(pem)))
