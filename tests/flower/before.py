"""nginx as `incrowd flower proxy` configures it, before a stand-in of the server, with parties and strangers."""

import base64
import http.client
import shutil
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from incrowd.flower.proxy import write_proxy
from incrowd.parties.keys import Enrolment, new_authority, new_party, new_server_certificate
from tests.flower.deployment import free_port
from tests.flower.upstream import Upstream
from tests.nginx import Nginx

PULL = "/v1/fleet/pull-messages"


@dataclass
class Before:
    """The proxy, what is behind it, and who may pass."""

    folder: Path
    port: int
    nginx: Nginx
    upstream: Upstream
    parties: dict[str, Enrolment]
    listen: str = "127.0.0.1"

    def enrol(self, *names: str) -> None:
        """Let these parties pass, and give them their certificates."""
        enrolled = self.folder / "enrolled"
        enrolled.mkdir(exist_ok=True)
        for path in enrolled.glob("*.pub"):
            path.unlink()
        for name in names:
            (enrolled / f"{name}.pub").write_text(self.parties[name].text())
        where = [f"{self.listen}:{self.port}"]
        write_proxy(self.folder / "proxy", self.folder / "keys", enrolled, listen=where, port=self.upstream.port)
        for name in names:
            (self.folder / name / "node.crt").write_bytes((enrolled / f"{name}.crt").read_bytes())

    def trust(self, party: str | None, key: str | None = None) -> ssl.SSLContext:
        """A client that trusts the server, and shows a party's certificate, or none."""
        made = ssl.create_default_context(cafile=str(self.folder / "keys" / "ca.crt"))
        if party is not None:
            made.load_cert_chain(self.folder / party / "node.crt", self.folder / (key or party) / "node.key")
        return made

    def header(self, party: str) -> dict[str, str]:
        """Flower's header with a party's node key."""
        return {"flwr-public-key": base64.b64encode(self.parties[party].node_pem()).decode()}

    def connection(self, party: str | None) -> http.client.HTTPSConnection:
        address, trust = ("127.0.0.1", 0), self.trust(party)
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=trust, timeout=20, source_address=address)

    def ask(
        self,
        party: str | None,
        path: str = PULL,
        *,
        method: str = "POST",
        body: bytes = b"x",
        headers: dict[str, str] | None = None,
    ) -> int | str:
        """The status of an answer over a fresh connection, or how it broke."""
        connection = self.connection(party)
        try:
            connection.request(
                method, path, body=body, headers=self.header(party or "amber") if headers is None else headers
            )
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            connection.close()


@contextmanager
def before(change: Callable[[str], str] = str, *, listen: str = "127.0.0.1") -> Iterator[Before]:
    """Two enrolled parties and one that is not; `change` changes the configuration."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-"))  # a socket's path is to be short
    upstream = None
    try:
        new_authority(folder / "keys")
        new_server_certificate(folder / "keys", ["fl.example.org"])
        parties = {name: new_party(folder / name, name) for name in ("amber", "birch", "cedar")}
        upstream, nginx = Upstream(folder / "keys"), Nginx(folder / "proxy")
        made = Before(folder=folder, port=free_port(), nginx=nginx, upstream=upstream, parties=parties, listen=listen)
        made.enrol("amber", "birch", "cedar")  # which has a certificate, and is gone when nginx begins
        made.enrol("amber", "birch")
        written = folder / "proxy" / "nginx.conf"
        written.write_text(change(written.read_text()))
        try:
            nginx.start(made.port)
            yield made
        finally:
            nginx.stop()
    finally:
        if upstream is not None:
            upstream.stop()
        shutil.rmtree(folder)
