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
from pathlib import Path
from typing import Any, Literal

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
from incrowd.parties.roster import Card, Roster, signer_of
from incrowd.settings import Section

AUTHORITY_KEY, AUTHORITY = "ca.key", "ca.crt"
SERVER_KEY, SERVER = "server.key", "server.crt"
NODE_KEY, NODE, ANSWER_KEY = "node.key", "node.crt", "answers.key"
INVITATION, QUESTION_KEY = "invitation.json", "questions.key"
LOOPBACK = "127.0.0.1"

_PARTY = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_HOST = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_ENROLMENT = re.compile(r"(\S+ \S+) (\S+)\n(\S+)\n")
_CLOCKS_DIFFER = datetime.timedelta(minutes=10)
_LONGEST = 2**16


class Enrolment(Section):
    """A party's enrolment: its name, the key of its connection in OpenSSH form, and that of its answers in a card's.

    Guarantee: it has a name, and two keys that can be used (P-384 and Ed25519).
    """

    name: str
    node_key: str
    answer_key: str

    def model_post_init(self, context: Any, /) -> None:
        """Refuse names and keys that are none."""
        check_party(self.name)
        self.node()
        self.verifier()

    @property
    def fingerprint(self) -> str:
        """The fingerprint that both sides compare over another channel."""
        return _fingerprint(self.text())

    def node_pem(self) -> bytes:
        """The key of the connection in the form that Flower compares."""
        return self.node().public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)

    def node(self) -> ec.EllipticCurvePublicKey:
        """The key of the connection."""
        key: object = None
        with suppress(ValueError, UnsupportedAlgorithm):
            key = forms.load_ssh_public_key(self.node_key.encode())
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
            raise ConfigError(field="node_key", value=self.node_key, remedy="give a P-384 key in OpenSSH form")
        return key

    def verifier(self) -> ed25519.Ed25519PublicKey:
        """The public key of this party's answers."""
        return signer_of(self.answer_key, field="answer_key")

    def text(self) -> str:
        """The file that travels to the server; Flower reads its first line."""
        return f"{self.node_key} {self.name}\n{self.answer_key}\n"


def read_roster(folder: Path, names: Sequence[str] | None = None) -> Roster:
    """The roster of the parties whose enrolments lie in a folder, all of them or these."""
    paths = sorted(folder.glob("*.pub")) if names is None else [folder / f"{name}.pub" for name in names]
    for path in paths:
        if not path.exists():
            remedy = "parties that share noise are all there from the first round to the last: put it back"
            raise ConfigError(field="enrolled", value=str(path), remedy=remedy)
    enrolled = [read_enrolment(path) for path in paths]
    return Roster(tuple(Card(name=each.name, key=each.answer_key) for each in enrolled))


def read_enrolment(path: Path) -> Enrolment:
    """The enrolment in a file that a party sent; one that is not such a file is a `DataError` that says so."""
    found = _ENROLMENT.fullmatch(path.read_bytes()[:_LONGEST].decode("ascii", "replace"))
    if found is None:
        raise DataError(f"{path} is not an enrolment: it is to have two lines, a key with a name and another key")
    try:
        return Enrolment(name=found[2], node_key=found[1], answer_key=found[3])
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
    public = node.public_key().public_bytes(forms.Encoding.OpenSSH, forms.PublicFormat.OpenSSH).decode()
    enrolment = Enrolment(name=name, node_key=public, answer_key=Card.of(name, answers).key)
    _files.write(places[0], _private(node))
    _files.write(places[1], _private(answers))
    _files.write(places[2], enrolment.text())
    return enrolment


def node_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """The key of a party's connection, from its own folder."""
    return _connection_key(folder / NODE_KEY)


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
    made = _issued("incrowd authority", key.public_key(), key, days=days)
    _files.write(folder / AUTHORITY_KEY, _private(key))
    _files.write(folder / AUTHORITY, made.public_bytes(forms.Encoding.PEM))


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
    if not renew:
        _refuse_to_replace(folder / SERVER_KEY, folder / SERVER)
        new = ec.generate_private_key(ec.SECP256R1())  # P-256: its handshakes cost a third of those of P-384
        _files.write(folder / SERVER_KEY, _private(new))
    key = _connection_key(folder / SERVER_KEY)
    more = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), x509.SubjectAlternativeName(alternatives)
    made = _issued(hosts[0][:64], key.public_key(), signer, issuer=authority, days=days, more=more)
    _files.write(folder / SERVER, made.public_bytes(forms.Encoding.PEM))


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
    more = (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]),)
    days = days_left(folder / AUTHORITY)
    made = _issued(party.name, party.node(), signer, issuer=authority, days=days, more=more)
    _files.write(place, made.public_bytes(forms.Encoding.PEM))
    return made


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    authority = x509.load_pem_x509_certificate(read_ours(folder / AUTHORITY))
    signer = _connection_key(folder / AUTHORITY_KEY)
    if signer.public_key() != authority.public_key():
        raise DataError(f"{folder / AUTHORITY_KEY} is not the key of {folder / AUTHORITY}")
    return authority, signer


def days_left(certificate: Path) -> int:
    """The whole days until a certificate expires; a negative number where it has."""
    return (_certificate(certificate).not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days


def check_certificate(certificate: Path) -> None:
    """Refuse a certificate that has expired, or is not valid yet (`ConfigError`)."""
    found, now, remedy = _certificate(certificate), datetime.datetime.now(datetime.UTC), ""
    if now >= found.not_valid_after_utc:
        remedy = f"it expired on {found.not_valid_after_utc:%Y-%m-%d}: renew it (`new_server_certificate(renew=True)`)"
    if now < found.not_valid_before_utc:
        remedy = f"it is valid from {found.not_valid_before_utc:%Y-%m-%d %H:%M} UTC only: set this machine's clock"
    if remedy:
        raise ConfigError(field="certificate", value=str(certificate), remedy=remedy)


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is not a certificate in PEM form") from error


def _issued(
    name: str,
    key: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    *,
    issuer: x509.Certificate | None = None,
    days: int,
    more: Sequence[x509.ExtensionType] = (),
) -> x509.Certificate:
    """A certificate for a key that is good for connections alone; without an `issuer`, an authority's own."""
    own, begin, subject = issuer is None, datetime.datetime.now(datetime.UTC), _name(name)
    builder = x509.CertificateBuilder(
        issuer_name=subject if issuer is None else issuer.subject,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=begin - _CLOCKS_DIFFER,
        not_valid_after=begin + datetime.timedelta(days=days, minutes=1),  # so that whole days are left
    )
    usage = x509.KeyUsage(
        digital_signature=not own,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=own,
        crl_sign=own,
        encipher_only=False,
        decipher_only=False,
    )
    for critical in (x509.BasicConstraints(ca=own, path_length=0 if own else None), usage):
        builder = builder.add_extension(critical, critical=True)
    ours = x509.SubjectKeyIdentifier.from_public_key(key)
    issuers = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    for extension in (ours, issuers, *more):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(signer, hashes.SHA384())


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


def _private(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())


def _loaded(path: Path) -> object:
    content = read_ours(path, secret=True)
    try:
        return forms.load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DataError(f"{path} holds no private key that can be read") from error


def _connection_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = _loaded(path)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DataError(f"{path} holds no P-384 or P-256 key: make the keys in its folder anew")
    return key


def _signing_key(path: Path) -> ed25519.Ed25519PrivateKey:
    key = _loaded(path)
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise DataError(f"{path} holds no Ed25519 key: make the keys in its folder anew")
    return key


def _fingerprint(text: str) -> str:
    return "SHA256:" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def _refuse_to_replace(*places: Path) -> None:
    for place in places:
        if place.exists():
            remedy = "it is there already, and a key is never replaced: choose another folder, or move it away first"
            raise ConfigError(field="folder", value=str(place), remedy=remedy)


class Invitation(Section):
    """The address of a server, the authority that signs its certificate, and the key that signs its questions."""

    format: Literal["incrowd invitation 2"] = "incrowd invitation 2"
    address: str
    authority: str
    questions: str

    def model_post_init(self, context: Any, /) -> None:
        """The key is refused now, rather than when it is needed."""
        _ = self.verifier

    @property
    def fingerprint(self) -> str:
        """The fingerprint that both sides compare over another channel."""
        return _fingerprint(self.to_text())

    @property
    def verifier(self) -> ed25519.Ed25519PublicKey:
        """The public key of the server's questions."""
        return signer_of(self.questions, field="questions")

    def to_text(self) -> str:
        """The file that travels to the parties."""
        return json.dumps(self.model_dump(), indent=1, sort_keys=True) + "\n"

    @classmethod
    def read(cls, path: Path) -> "Invitation":
        """The invitation in a file."""
        try:
            return cls.model_validate_json(path.read_bytes()[:_LONGEST])
        except OSError as error:
            remedy = f"it cannot be read: {error.strerror}"
            raise ConfigError(field="invitation", value=str(path), remedy=remedy) from error
        except ValueError as error:
            raise DataError(f"{path} is no invitation: have the server's invitation.json sent again") from error


def new_invitation(folder: Path, address: str) -> Invitation:
    """Make the key that signs a server's questions, unless it is there, and the file that every party is given."""
    make_ours(folder)
    if not (folder / QUESTION_KEY).exists():
        _files.write(folder / QUESTION_KEY, _private(ed25519.Ed25519PrivateKey.generate()))
    questions = question_key(folder).public_key().public_bytes_raw().hex()
    invitation = Invitation(address=address, authority=(folder / AUTHORITY).read_text(), questions=questions)
    _files.write(folder / INVITATION, invitation.to_text())
    return invitation


def question_key(folder: Path) -> ed25519.Ed25519PrivateKey:
    """The key that signs a server's questions, from its own folder."""
    return _signing_key(folder / QUESTION_KEY)
