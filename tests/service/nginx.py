"""nginx as the configurations of the package start it, on loopback, in a folder of the test."""

import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.service.listener import certificate

NGINX = shutil.which("nginx") or ("/usr/sbin/nginx" if Path("/usr/sbin/nginx").exists() else None)


def needs_nginx() -> None:
    if NGINX is None or not Path("/usr/lib/nginx/modules/ngx_stream_module.so").exists():
        why = "there is no nginx here: apt-get install nginx libnginx-mod-stream"
        (pytest.fail if os.environ.get("INCROWD_ALL_TESTS") else pytest.skip)(why)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@dataclass(frozen=True)
class Nginx:
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
def nginx(folder: Path, text: str, *, service: int, changes: Mapping[str, str]) -> Iterator[Nginx]:
    """The service's configuration, on free ports; `changes` are a test's own."""
    assert NGINX is not None
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
    command = [NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")]
    subprocess.run([*command, "-t"], check=True, capture_output=True)
    with subprocess.Popen([*command, "-g", "daemon off;"], stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 20
            while time.monotonic() < until:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield Nginx(folder, port, inner, ssl.create_default_context(cafile=str(pem)))
        finally:
            process.terminate()
            process.wait(20)
