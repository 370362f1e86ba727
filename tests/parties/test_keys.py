import datetime
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from incrowd.errors import ConfigError, DataError
from incrowd.parties import keys


@pytest.fixture
def server(tmp_path: Path) -> Path:
    keys.new_authority(tmp_path / "server")
    return tmp_path / "server"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_private_keys_are_for_this_user_alone_whatever_the_umask(tmp_path: Path, server: Path) -> None:
    keys.new_server_certificate(server, ["fl.example.org"])
    keys.new_party(tmp_path / "party", "amber")
    assert [mode(folder) for folder in (server, tmp_path / "party")] == [0o700] * 2
    private = [
        server / "ca.key",
        server / "server.key",
        tmp_path / "party" / "node.key",
        tmp_path / "party" / "answers.key",
    ]
    assert [mode(path) for path in private] == [0o600] * 4


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    keys.new_party(tmp_path / "party", "amber")
    (tmp_path / "party" / "node.key").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod go-rwx"):
        keys.node_key(tmp_path / "party")


def test_no_key_is_ever_replaced(tmp_path: Path, server: Path) -> None:
    keys.new_server_certificate(server, ["fl.example.org"])
    keys.new_party(tmp_path / "party", "amber")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for again in (
        lambda: keys.new_authority(server),
        lambda: keys.new_server_certificate(server, ["fl.example.org"]),
        lambda: keys.new_party(tmp_path / "party", "amber"),
        lambda: keys.new_party(tmp_path / "party", "birch"),
    ):
        with pytest.raises(ConfigError, match="never replaced"):
            again()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_renewing_keeps_the_key_and_makes_a_later_certificate(server: Path) -> None:
    keys.new_server_certificate(server, ["fl.example.org"], days=10)
    key = (server / "server.key").read_bytes()
    keys.new_server_certificate(server, ["fl.example.org"], days=100, renew=True)
    assert (server / "server.key").read_bytes() == key
    assert keys.days_left(server / "server.crt") == 100


def test_the_certificate_is_for_the_names_and_addresses_that_were_given_and_for_a_server_only(server: Path) -> None:
    keys.new_server_certificate(server, ["fl.example.org", "10.0.0.5", "::1"])
    certificate = x509.load_pem_x509_certificate((server / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.5", "::1", "127.0.0.1"]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]


def test_the_authority_can_sign_no_other_authority(server: Path) -> None:
    authority = x509.load_pem_x509_certificate((server / "ca.crt").read_bytes())
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)


@pytest.mark.parametrize("hosts", [[], ["https://fl.example.org"], ["a b"], ["-a.example"], [""], ["fl.example.org:1"]])
def test_hosts_that_are_neither_names_nor_addresses_are_refused(server: Path, hosts: list[str]) -> None:
    with pytest.raises(ConfigError, match="host"):
        keys.new_server_certificate(server, hosts)
    assert not (server / "server.key").exists()


def test_the_key_of_another_authority_is_refused(tmp_path: Path, server: Path) -> None:
    keys.new_authority(tmp_path / "other")
    (server / "ca.key").write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    with pytest.raises(DataError, match="is not the key of"):
        keys.new_server_certificate(server, ["fl.example.org"])


@pytest.mark.parametrize(("begin", "end", "words"), [(-9, -1, "it expired on"), (1, 9, "set this machine's clock")])
def test_a_certificate_that_is_not_valid_now_is_refused(tmp_path: Path, begin: int, end: int, words: str) -> None:
    key, now = ec.generate_private_key(ec.SECP384R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "old")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1)
    builder = builder.not_valid_before(now + datetime.timedelta(days=begin))
    builder = builder.not_valid_after(now + datetime.timedelta(days=end))
    path = tmp_path / "server.crt"
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(forms.Encoding.PEM))
    with pytest.raises(ConfigError, match=words):
        keys.check_certificate(path)


@pytest.fixture(scope="module")
def enrolment(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One enrolment for all examples."""
    return keys.new_party(tmp_path_factory.mktemp("own"), "amber").text()


@pytest.mark.slow
@given(st.data())
def test_a_file_that_is_no_enrolment_is_refused_in_our_words(
    tmp_path_factory: pytest.TempPathFactory, enrolment: str, data: st.DataObject
) -> None:
    folder, text = tmp_path_factory.mktemp("party"), enrolment
    broken = data.draw(
        st.one_of(
            st.integers(0, len(text) - 1).map(lambda at: text[:at]),
            st.just(text + text),
            st.just(text * 1000),
            st.just(text.replace("amber", "../amber")),
            st.just("\n".join(reversed(text.split("\n")))),
            st.just(text.replace("ecdsa", "ssh")),
            st.binary(max_size=200).map(lambda content: content.decode("latin-1")),
        )
    )
    (folder / "sent.pub").write_text(broken)
    with pytest.raises(DataError, match="is not an enrolment"):
        keys.read_enrolment(folder / "sent.pub")


@pytest.mark.parametrize("name", ["", "Amber", "a_b", "-a", "a-", "a" * 33, "../a", "ä", "a\n"])
def test_a_partys_name_is_small_letters_digits_and_hyphens(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="name a party with"):
        keys.new_party(tmp_path / "party", name)
    assert not (tmp_path / "party").exists()


def test_keys_of_another_kind_are_refused(tmp_path: Path) -> None:
    made = keys.new_party(tmp_path, "amber")
    small = ec.generate_private_key(ec.SECP256R1()).public_key()
    line = small.public_bytes(forms.Encoding.OpenSSH, forms.PublicFormat.OpenSSH).decode()
    for node, answers, field in (
        (made.answer_key, made.answer_key, "node_key"),
        (line, made.answer_key, "node_key"),
        (made.node_key, made.node_key, "answer_key"),
    ):
        with pytest.raises(ConfigError, match=field):
            keys.Enrolment(name="amber", node_key=node, answer_key=answers)


def test_the_authority_signs_a_party_s_connection_once_and_makes_no_server_of_it(tmp_path: Path, server: Path) -> None:
    made, place = keys.new_party(tmp_path / "amber", "amber"), tmp_path / "amber.crt"
    first = keys.certified(server, made, place)
    assert first.public_key() == made.node()
    usage = first.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    (server / "ca.key").rename(server / "away")
    assert keys.certified(server, made, place) == first  # the authority's key is needed once
    (server / "away").rename(server / "ca.key")
    other = keys.new_party(tmp_path / "other", "amber")
    assert keys.certified(server, other, place).public_key() == other.node()
    keys.new_authority(tmp_path / "another")
    place.write_bytes(first.public_bytes(forms.Encoding.PEM))
    anew = keys.certified(tmp_path / "another", made, place)
    assert (anew.public_key(), anew.serial_number == first.serial_number) == (made.node(), False)


def test_private_keys_that_were_swapped_or_damaged_say_so(tmp_path: Path) -> None:
    keys.new_party(tmp_path, "amber")
    node, answers = (tmp_path / "node.key").read_bytes(), (tmp_path / "answers.key").read_bytes()
    (tmp_path / "node.key").write_bytes(answers)
    (tmp_path / "answers.key").write_bytes(node)
    with pytest.raises(DataError, match="no P-384 or P-256 key"):
        keys.node_key(tmp_path)
    with pytest.raises(DataError, match="no Ed25519 key"):
        keys.answer_key(tmp_path)
    (tmp_path / "node.key").write_bytes(node[:100])
    with pytest.raises(DataError, match="no private key that can be read"):
        keys.node_key(tmp_path)
