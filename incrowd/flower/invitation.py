"""What a server gives to every party: where it is, and how to know that it is the one. Public, and to be compared."""

import base64
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from incrowd import _files
from incrowd._private import make_ours, read_ours
from incrowd.errors import ConfigError, DataError
from incrowd.flower.keys import AUTHORITY

INVITATION = "invitation.json"
QUESTION_KEY = "questions.key"
FORMAT = "incrowd invitation 1"
_LONGEST = 2**16


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """The address of a server, the authority that signs its certificate, and the key that signs its questions.

    Edge cases: a file that is none, or whose key is none, is a `DataError`.
    """

    address: str
    authority: str
    questions: str

    @property
    def fingerprint(self) -> str:
        """What the two sides read to each other, over another way than the file came by."""
        digest = hashlib.sha256(self.to_text().encode()).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    @property
    def verifier(self) -> Ed25519PublicKey:
        """What checks the signatures of the server's questions."""
        try:
            key = serialization.load_ssh_public_key(self.questions.encode())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise DataError("the invitation's key for questions is none: have it sent again") from error
        if not isinstance(key, Ed25519PublicKey):
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
        form = _form(content) if len(content) <= _LONGEST else {}
        names = ("address", "authority", "questions")
        if form.get("format") != FORMAT or not all(isinstance(form.get(name), str) for name in names):
            raise DataError(f"{path} is no invitation: have the server's invitation.json sent again")
        found = cls(**{name: form[name] for name in names})
        found.verifier  # noqa: B018  # refused now, rather than when it is needed
        return found


def new_invitation(folder: Path, address: str) -> Invitation:
    """Make the key that signs a server's questions, unless it is there, and the file that every party is given."""
    make_ours(folder)
    if not (folder / QUESTION_KEY).exists():
        private = Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
        _files.write(folder / QUESTION_KEY, private)
    public = question_key(folder).public_key()
    line = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    invitation = Invitation(address=address, authority=(folder / AUTHORITY).read_text(), questions=line)
    _files.write(folder / INVITATION, invitation.to_text())
    return invitation


def question_key(folder: Path) -> Ed25519PrivateKey:
    """The key that signs a server's questions, from its own folder."""
    key = serialization.load_ssh_private_key(read_ours(folder / QUESTION_KEY, secret=True), None)
    if not isinstance(key, Ed25519PrivateKey):
        raise DataError(f"{folder / QUESTION_KEY} holds no Ed25519 key: make the server's keys anew")
    return key


def _form(content: bytes) -> dict[str, Any]:
    try:
        form = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return form if isinstance(form, dict) else {}
