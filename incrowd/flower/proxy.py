"""nginx before a server of parties: its configuration, for the enrolled parties.

nginx terminates TLS, and limits connections, times and rates. It asks each party for the certificate of its node key
before anything else, and passes the paths of Flower's Fleet API alone.
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
_MODULE = Path("/usr/lib/nginx/modules/ngx_stream_module.so")  # Debian's module; elsewhere it is built in
_LONGEST_SOCKET = 100
_SAFE = re.compile(r"[\w./+-]+")


def enrolled_in(folder: Path) -> list[Enrolment]:
    """The enrolments in a folder. Edge cases: a folder without one is a `ConfigError`."""
    found = [read_enrolment(path) for path in sorted(folder.glob("*.pub"))]
    if not found:
        remedy = "put the NAME.pub of each party there: nginx lets nobody else through"
        raise ConfigError(field="enrolled", value=str(folder), remedy=remedy)
    return found


def write_proxy(
    folder: Path, keys: Path, parties: Sequence[Enrolment], *, listen: Sequence[str], port: int = PORT
) -> Path:
    """Write the configuration and the list of enrolled parties; `command` starts nginx.

    Guarantee: nginx admits a party with the certificate and the node key of one enrolment, and no other.

    Edge cases: an address that is not ADDRESS:PORT, a path that nginx cannot take, and missing keys are a
    `ConfigError`.
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
        "user": f"user {pwd.getpwuid(keys.stat().st_uid).pw_name};\n" if root else "",  # the owner of the keys
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
    """The command that starts nginx; with `-s reload` it reads the configuration anew, with `-s quit` it ends."""
    return ["nginx", "-p", str(folder.resolve()), "-e", "logs/error.log", "-c", CONFIGURATION]


def _line(party: Enrolment) -> str:
    """A party's line: nginx knows the certificate by its SHA-1, beside the whole key."""
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
