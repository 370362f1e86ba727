"""Attack: who is not enrolled, is no longer, or passes for a server, at the port that parties reach.

The control is an enrolled party, whose upload goes on while others come and go.
"""

import datetime
import http.client
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from incrowd.flower.fleet import LineBroken, PartyLine
from incrowd.flower.proxy import reload_proxy
from incrowd.parties.keys import certified, new_authority, new_party, node_key
from tests import nginx
from tests.flower.before import PULL, Before, before
from tests.flower.deployment import wait_for
from tests.flower.upstream import Upstream

pytestmark = nginx.missing


@pytest.fixture
def place() -> Iterator[Before]:
    with before() as made:
        yield made


def forged(place: Before) -> None:
    """Cedar's folder gets a certificate that it signed itself, with the name and the number of amber's."""
    own, key = place.folder / "cedar", node_key(place.folder / "cedar")
    real = x509.load_pem_x509_certificate((place.folder / "amber" / "node.crt").read_bytes())
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(real.issuer, real.subject, key.public_key(), real.serial_number)
    made = builder.not_valid_before(now - day).not_valid_after(now + day).sign(key, hashes.SHA384())
    (own / "node.crt").write_bytes(made.public_bytes(Encoding.PEM))


def from_another_authority(place: Before) -> None:
    """Cedar's folder gets the certificate of an authority of its own."""
    new_authority(place.folder / "another")
    certified(place.folder / "another", place.parties["cedar"], place.folder / "cedar" / "node.crt")


def test_who_is_not_enrolled_gets_nothing(place: Before) -> None:
    amber = place.header("amber")
    assert place.ask(None, headers=amber) == 400
    assert place.ask("cedar") == 401, "one that was removed"
    assert place.ask("cedar", headers=amber) == 401
    forged(place)
    assert place.ask("cedar", headers=amber) == 400
    from_another_authority(place)
    assert place.ask("cedar", headers=amber) == 400
    assert place.ask("cedar") == 400
    assert place.upstream.came == []
    assert place.ask("amber") == 200


def test_one_that_is_removed_is_refused_while_the_upload_of_another_goes_on(place: Before) -> None:
    there, gone = place.connection("birch"), place.connection("amber")

    def asked() -> int | str:
        """The status of amber's next request on a connection that it opened before it was removed."""
        try:
            gone.request("POST", PULL, body=b"x", headers=place.header("amber"))
            with gone.getresponse() as answer:
                answer.read()
                return answer.status
        except (http.client.HTTPException, OSError):
            return "closed"

    assert asked() == 200
    there.putrequest("POST", "/v1/fleet/push-object")
    for name, value in {**place.header("birch"), "content-length": "2000000"}.items():
        there.putheader(name, value)
    there.endheaders(bytes(1_000_000))

    place.enrol("birch", "cedar")
    reload_proxy(place.folder / "proxy")
    wait_for(lambda: place.ask("cedar") == 200)
    came = len(place.upstream.came)
    assert (place.ask("amber"), asked()) == (401, "closed")
    assert len(place.upstream.came) == came
    there.send(bytes(1_000_000))
    with there.getresponse() as answer:
        assert answer.status == 200
    there.close()
    gone.close()


def test_a_party_does_not_pass_for_the_server(place: Before, tmp_path: Path) -> None:
    new_party(tmp_path / "dune", "dune")
    for kind in ("crt", "key"):
        shutil.copy(place.folder / "birch" / f"node.{kind}", tmp_path / f"server.{kind}")
    authority = (place.folder / "keys" / "ca.crt").read_text()
    for keys, error, requests in ((tmp_path, LineBroken, 0), (place.folder / "keys", ValueError, 1)):
        upstream = Upstream(keys)
        line = PartyLine(f"127.0.0.1:{upstream.port}", authority, tmp_path / "dune")
        try:
            with pytest.raises(error, match=r"certificate|protobuf"):  # the true one is heard; it speaks no protobuf
                line.activate(None)
            assert len(upstream.came) == requests
        finally:
            line.close()
            upstream.stop()
