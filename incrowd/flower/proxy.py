"""nginx before a server of parties: its configuration, for the parties that are enrolled.

TLS, and all limits of connections, times and rates, are nginx's. It asks each party for the certificate of its node key
before anything else, and passes the paths of Flower's Fleet API on, and no other.
"""

import base64
import ipaddress
import os
import pwd
import re
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from incrowd import _files
from incrowd._private import make_ours
from incrowd._validate import count
from incrowd.errors import ConfigError
from incrowd.flower.superlink import PORT
from incrowd.parties.keys import AUTHORITY, SERVER, SERVER_KEY, Enrolment, check_certificate, read_enrolment

CONFIGURATION = "nginx.conf"
_MODULE = Path("/usr/lib/nginx/modules/ngx_stream_module.so")  # where Debian has it; elsewhere it is built in
_LONGEST_SOCKET = 100
_SAFE = re.compile(r"[\w./+-]+")


def enrolled_in(folder: Path) -> list[Enrolment]:
    """The parties whose enrolments lie in a folder. Edge cases: a folder without one is a `ConfigError`."""
    found = [read_enrolment(path) for path in sorted(folder.glob("*.pub"))]
    if not found:
        remedy = "put the NAME.pub of each party there: nginx lets nobody else through"
        raise ConfigError(field="enrolled", value=str(folder), remedy=remedy)
    return found


def write_proxy(
    folder: Path, keys: Path, parties: Sequence[Enrolment], *, listen: Sequence[str], port: int = PORT
) -> Path:
    """Write the configuration, and who is let through; nginx's words for starting it are `command`.

    Guarantee: a party is let through with the certificate and the node key of one enrolment, and nobody without one.

    Edge cases: an address that is not ADDRESS:PORT, a folder whose path nginx could not take, and keys that are not
    there are a `ConfigError`.
    """
    folder, keys = folder.resolve(), keys.resolve()
    count(port=port)
    for name in (SERVER, SERVER_KEY, AUTHORITY):
        if not (keys / name).exists():
            raise ConfigError(field="keys", value=str(keys), remedy=f"{name} is missing: make them with `flower keys`")
    check_certificate(keys / SERVER)
    for place in (folder, keys):
        if not _SAFE.fullmatch(str(place)) or len(str(place)) > _LONGEST_SOCKET:
            remedy = f"choose a path of letters, digits and ._+-/ of at most {_LONGEST_SOCKET} characters"
            raise ConfigError(field="folder", value=str(place), remedy=remedy)
    root = os.geteuid() == 0
    values = {
        "user": f"user {pwd.getpwuid(keys.stat().st_uid).pw_name};\n" if root else "",  # who may read the keys
        "module": f"load_module {_MODULE};\n" if _MODULE.exists() else "",
        "listen": "\n    ".join(f"listen {_address(each)} backlog=1024;" for each in listen),
        "folder": str(folder),
        "keys": str(keys),
        "port": str(port),
    }
    text = files("incrowd.flower").joinpath(CONFIGURATION).read_text(encoding="utf-8")
    text = re.sub(r"@(\w+)@", lambda found: values[found[1]], text)
    make_ours(folder)
    for name in ("logs", "tmp"):
        make_ours(folder / name)
    _files.write(folder / "parties.pem", b"".join(each.shown().public_bytes(Encoding.PEM) for each in parties))
    _files.write(folder / "parties.map", "".join(map(_line, parties)))
    _files.write(folder / CONFIGURATION, text)
    return folder / CONFIGURATION


def command(folder: Path) -> list[str]:
    """What starts nginx; with `-s reload` after it, it reads the configuration anew, with `-s quit` it ends."""
    return ["nginx", "-p", str(folder.resolve()), "-e", "logs/error.log", "-c", CONFIGURATION]


def _line(party: Enrolment) -> str:
    """A party as nginx knows it: SHA-1 of its certificate is what nginx has of it, beside the whole key."""
    shown = party.shown().fingerprint(hashes.SHA1()).hex()  # noqa: S303  # the certificate was verified before
    return f'"{shown}:{base64.b64encode(party.node_pem()).decode()}" {party.name};\n'


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    known = None
    with suppress(ValueError):
        known, number = ipaddress.ip_address(host.removeprefix("[").removesuffix("]")), int(port)
    if known is None or not 0 < number < 2**16:
        remedy = "give ADDRESS:PORT, such as 0.0.0.0:9092 or [::]:9092"
        raise ConfigError(field="listen", value=text, remedy=remedy)
    return f"[{known}]:{number}" if known.version == 6 else f"{known}:{number}"
