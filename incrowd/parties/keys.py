"""Keys and certificates of the server and its parties.

The server's folder holds its own authority and its certificate. A party's folder holds the key of its connection
(P-384, as Flower requires), and the key that signs its answers (Ed25519). Private keys never leave their folder: the
invitation travels to the parties, `NAME.pub` to the server, and the certificate that its authority signs back.
"""

import base64
import datetime
import hashlib
import ipaddress
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from incrowd import _files
from incrowd._private import make_ours, read_ours
from incrowd._validate import count
from incrowd.errors import ConfigError, DataError
from incrowd.parties.roster import Card, Roster

AUTHORITY_KEY, AUTHORITY = "ca.key", "ca.crt"
SERVER_KEY, SERVER = "server.key", "server.crt"
NODE_KEY, NODE, ANSWER_KEY = "node.key", "node.crt", "answers.key"
LOOPBACK = "127.0.0.1"

_PARTY = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_HOST = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_CLOCKS_DIFFER = datetime.timedelta(minutes=10)
_LONGEST_ENROLMENT = 4096


@dataclass(frozen=True)
class Enrolment:
    """A party's enrolment: its name, and two public keys as lines in OpenSSH form.

    Guarantee: it has a name, and two keys that can be used (P-384 and Ed25519).
    """

    name: str
    node_key: bytes
    answer_key: bytes

    def __post_init__(self) -> None:
        check_party(self.name)
        self.node_pem()
        self.verifier()

    @property
    def fingerprint(self) -> str:
        """The fingerprint that both sides compare over another channel."""
        parts = (self.name.encode(), self.node_key, self.answer_key)
        return "SHA256:" + base64.b64encode(hashlib.sha256(b"\n".join(parts)).digest()).decode().rstrip("=")

    def node_pem(self) -> bytes:
        """The key of the connection in the form that Flower compares."""
        return self.node().public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)

    def node(self) -> ec.EllipticCurvePublicKey:
        """The key of the connection."""
        key = _public(self.node_key)
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
            raise ConfigError(field="node_key", value=self.node_key, remedy="give a P-384 key in OpenSSH form")
        return key

    def verifier(self) -> ed25519.Ed25519PublicKey:
        """The public key of this party's answers."""
        key = _public(self.answer_key)
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise ConfigError(field="answer_key", value=self.answer_key, remedy="give an Ed25519 key in OpenSSH form")
        return key

    def text(self) -> str:
        """The file that travels to the server."""
        return "".join(f"{line.decode()} {self.name}\n" for line in (self.node_key, self.answer_key))


def read_roster(folder: Path, names: Sequence[str] | None = None) -> Roster:
    """The roster of the parties whose enrolments lie in a folder, all of them or these."""
    paths = sorted(folder.glob("*.pub")) if names is None else [folder / f"{name}.pub" for name in names]
    for path in paths:
        if not path.exists():
            remedy = "parties that share noise are all there from the first round to the last: put it back"
            raise ConfigError(field="enrolled", value=str(path), remedy=remedy)
    enrolled = [read_enrolment(path) for path in paths]
    return Roster(tuple(Card(name=each.name, key=each.verifier().public_bytes_raw().hex()) for each in enrolled))


def read_enrolment(path: Path) -> Enrolment:
    """The enrolment in a file that a party sent; one that is not such a file is a `DataError` that says so."""
    content = path.read_bytes()[: _LONGEST_ENROLMENT + 1]
    lines = content.split(b"\n")
    words = [line.split(b" ") for line in lines[:2]]
    names = {word[2] for word in words if len(word) == 3}
    if len(content) > _LONGEST_ENROLMENT or lines[2:] != [b""] or [len(word) for word in words] != [3, 3]:
        raise DataError(f"{path} is not an enrolment: it is to have two lines, each a kind, a key and a name")
    if len(names) != 1:
        raise DataError(f"{path} is not an enrolment: its lines bear different names")
    try:
        return Enrolment(names.pop().decode("ascii", "replace"), *(b" ".join(word[:2]) for word in words))
    except ConfigError as error:
        raise DataError(f"{path} is not an enrolment: {error}") from error


def check_party(name: str) -> None:
    """Refuse a party's name that is not small letters, digits and hyphens (`ConfigError`)."""
    if not _PARTY.fullmatch(name):
        remedy = "name a party with 1 to 32 small letters, digits and hyphens (no hyphen first or last)"
        raise ConfigError(field="party", value=name, remedy=remedy)


def new_party(folder: Path, name: str) -> Enrolment:
    """Make a party's two keys, and the file `NAME.pub` that it sends to the server.

    Guarantee: private keys are in files that only this user can read, in a folder that only this user can change; a key
    that is there is never replaced (`ConfigError`).
    """
    check_party(name)
    make_ours(folder)
    places = (folder / NODE_KEY, folder / ANSWER_KEY, folder / f"{name}.pub")
    _refuse_to_replace(*places)
    node, answers = ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate()
    enrolment = Enrolment(name, _openssh_public(node.public_key()), _openssh_public(answers.public_key()))
    _files.write(places[0], _private(node, forms.PrivateFormat.PKCS8))
    _files.write(places[1], _private(answers, forms.PrivateFormat.OpenSSH))
    _files.write(places[2], enrolment.text())
    return enrolment


def node_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """The key of a party's connection, from its own folder."""
    key = _load(folder / NODE_KEY)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise DataError(f"{folder / NODE_KEY} holds no P-384 key: make the party's keys anew")
    return key


def answer_key(folder: Path) -> ed25519.Ed25519PrivateKey:
    """The key that signs a party's answers, from its own folder."""
    return _signing_key(folder / ANSWER_KEY)


def new_authority(folder: Path, *, days: int = 3650) -> None:
    """Make the authority of one server, which signs its certificate, and those of its parties' connections.

    Guarantee: as of `new_party`. The authority can sign no other authority.
    """
    count(days=days)
    make_ours(folder)
    _refuse_to_replace(folder / AUTHORITY_KEY, folder / AUTHORITY)
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("incrowd authority")
    builder = _builder(name, name, key.public_key(), key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(authority=True), critical=True)
    _files.write(folder / AUTHORITY_KEY, _private(key, forms.PrivateFormat.PKCS8))
    _files.write(folder / AUTHORITY, builder.sign(key, hashes.SHA384()).public_bytes(forms.Encoding.PEM))


def new_server_certificate(folder: Path, hosts: Sequence[str], *, days: int = 365, renew: bool = False) -> None:
    """Sign a certificate for a server that parties reach under these names or addresses, and on loopback.

    Guarantee: as of `new_party`. With `renew`, the certificate alone is made again, for the same key.
    """
    count(days=days)
    alternatives = [_host(host) for host in dict.fromkeys([*hosts, LOOPBACK, "localhost"])]
    if not hosts:
        raise ConfigError(field="hosts", value=hosts, remedy="give the name or address that parties reach it under")
    authority, signer = _authority(folder)
    if days > (left := days_left(folder / AUTHORITY)):
        raise ConfigError(field="days", value=days, remedy=f"give at most the {left} that the authority has left")
    key = _server_key(folder, renew=renew)
    builder = _builder(_name(hosts[0][:64]), authority.subject, key.public_key(), signer.public_key(), days)
    builder = _leaf(builder, ExtendedKeyUsageOID.SERVER_AUTH)
    builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    _files.write(folder / SERVER, builder.sign(signer, hashes.SHA384()).public_bytes(forms.Encoding.PEM))


def certified(folder: Path, party: Enrolment, place: Path) -> x509.Certificate:
    """The certificate of a party's connection, which the server's authority signs now unless it lies in its place.

    Guarantee: it names the party, is for its node key, and makes no server of the party. It lasts as long as the
    authority.
    """
    with suppress(FileNotFoundError, ValueError, TypeError, InvalidSignature):
        found = x509.load_pem_x509_certificate(place.read_bytes())
        found.verify_directly_issued_by(_certificate(folder / AUTHORITY))
        if (found.public_key(), found.subject) == (party.node(), _name(party.name)):
            return found
    authority, signer = _authority(folder)
    days = days_left(folder / AUTHORITY)
    builder = _builder(_name(party.name), authority.subject, party.node(), signer.public_key(), days)
    made = _leaf(builder, ExtendedKeyUsageOID.CLIENT_AUTH).sign(signer, hashes.SHA384())
    _files.write(place, made.public_bytes(forms.Encoding.PEM))
    return made


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    authority = x509.load_pem_x509_certificate(read_ours(folder / AUTHORITY))
    signer = _load(folder / AUTHORITY_KEY)
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or signer.public_key() != authority.public_key():
        raise DataError(f"{folder / AUTHORITY_KEY} is not the key of {folder / AUTHORITY}")
    return authority, signer


def days_left(certificate: Path) -> int:
    """The whole days until a certificate expires; a negative number where it has."""
    return (_certificate(certificate).not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days


def check_certificate(certificate: Path) -> None:
    """Refuse a certificate that has expired, or is not valid yet (`ConfigError`)."""
    found, now = _certificate(certificate), datetime.datetime.now(datetime.UTC)
    if now >= found.not_valid_after_utc:
        remedy = f"it expired on {found.not_valid_after_utc:%Y-%m-%d}: renew it (`new_server_certificate(renew=True)`)"
        raise ConfigError(field="certificate", value=str(certificate), remedy=remedy)
    if now < found.not_valid_before_utc:
        remedy = f"it is valid from {found.not_valid_before_utc:%Y-%m-%d %H:%M} UTC only: set this machine's clock"
        raise ConfigError(field="certificate", value=str(certificate), remedy=remedy)


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is not a certificate in PEM form") from error


def _server_key(folder: Path, *, renew: bool) -> ec.EllipticCurvePrivateKey:
    if renew:
        key = _load(folder / SERVER_KEY)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise DataError(f"{folder / SERVER_KEY} holds no key of the server")
        return key
    _refuse_to_replace(folder / SERVER_KEY, folder / SERVER)
    key = ec.generate_private_key(ec.SECP256R1())  # P-256: its handshakes cost a server a third of those of P-384
    _files.write(folder / SERVER_KEY, _private(key, forms.PrivateFormat.PKCS8))
    return key


def _leaf(builder: x509.CertificateBuilder, purpose: x509.ObjectIdentifier) -> x509.CertificateBuilder:
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(authority=False), critical=True)
    return builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    days: int,
) -> x509.CertificateBuilder:
    begin = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _CLOCKS_DIFFER)
        .not_valid_after(begin + datetime.timedelta(days=days, minutes=1))  # so that whole days are left
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host):
            remedy = "give a name such as fl.example.org, in small letters, or an address such as 10.0.0.5"
            raise ConfigError(field="host", value=host, remedy=remedy) from None
        return x509.DNSName(host)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _private(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, form: forms.PrivateFormat) -> bytes:
    return key.private_bytes(forms.Encoding.PEM, form, forms.NoEncryption())


def _openssh_public(key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey) -> bytes:
    return key.public_bytes(forms.Encoding.OpenSSH, forms.PublicFormat.OpenSSH)


def _public(line: bytes) -> object:
    try:
        return forms.load_ssh_public_key(line)
    except (ValueError, UnsupportedAlgorithm):
        return None  # the caller names the kind in its error


def _load(path: Path) -> object:
    content = read_ours(path, secret=True)
    try:
        if b"OPENSSH PRIVATE KEY" in content:
            return forms.load_ssh_private_key(content, None)
        return forms.load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DataError(f"{path} holds no private key that can be read") from error


def _signing_key(path: Path) -> ed25519.Ed25519PrivateKey:
    key = _load(path)
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise DataError(f"{path} holds no Ed25519 key: make the keys in its folder anew")
    return key


def _refuse_to_replace(*places: Path) -> None:
    for place in places:
        if place.exists():
            remedy = "it is there already, and a key is never replaced: choose another folder, or move it away first"
            raise ConfigError(field="folder", value=str(place), remedy=remedy)


INVITATION = "invitation.json"
QUESTION_KEY = "questions.key"
FORMAT = "incrowd invitation 1"
_LONGEST = 2**16


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """The address of a server, the authority that signs its certificate, and the key that signs its questions."""

    address: str
    authority: str
    questions: str

    @property
    def fingerprint(self) -> str:
        """The fingerprint that both sides compare over another channel."""
        digest = hashlib.sha256(self.to_text().encode()).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    @property
    def verifier(self) -> ed25519.Ed25519PublicKey:
        """The public key of the server's questions."""
        key = _public(self.questions.encode())
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise DataError("the invitation's key for questions is no Ed25519 key: have it sent again")
        return key

    def to_text(self) -> str:
        """The file that travels to the parties."""
        form = {"format": FORMAT, "address": self.address, "authority": self.authority, "questions": self.questions}
        return json.dumps(form, indent=1, sort_keys=True) + "\n"

    @classmethod
    def read(cls, path: Path) -> "Invitation":
        """The invitation in a file."""
        try:
            content = path.read_bytes()[: _LONGEST + 1]
        except OSError as error:
            remedy = f"it cannot be read: {error.strerror}"
            raise ConfigError(field="invitation", value=str(path), remedy=remedy) from error
        form: object = None
        with suppress(ValueError, RecursionError):
            form = json.loads(content) if len(content) <= _LONGEST else None
        names = ("address", "authority", "questions")
        whole = isinstance(form, dict) and form.get("format") == FORMAT
        if not isinstance(form, dict) or not whole or not all(isinstance(form.get(name), str) for name in names):
            raise DataError(f"{path} is no invitation: have the server's invitation.json sent again")
        found = cls(**{name: form[name] for name in names})
        found.verifier  # noqa: B018  # refused now, rather than when it is needed
        return found


def new_invitation(folder: Path, address: str) -> Invitation:
    """Make the key that signs a server's questions, unless it is there, and the file that every party is given."""
    make_ours(folder)
    if not (folder / QUESTION_KEY).exists():
        _files.write(folder / QUESTION_KEY, _private(ed25519.Ed25519PrivateKey.generate(), forms.PrivateFormat.OpenSSH))
    line = _openssh_public(question_key(folder).public_key()).decode()
    invitation = Invitation(address=address, authority=(folder / AUTHORITY).read_text(), questions=line)
    _files.write(folder / INVITATION, invitation.to_text())
    return invitation


def question_key(folder: Path) -> ed25519.Ed25519PrivateKey:
    """The key that signs a server's questions, from its own folder."""
    return _signing_key(folder / QUESTION_KEY)
