"""nginx before a server of parties: its configuration, for the enrolled parties.

nginx terminates TLS, and limits connections, times and rates. It asks each party for the certificate that the server's
authority signed for its node key, before anything else, and passes the paths of Flower's Fleet API alone.
"""

import base64
import os
import pwd
import re
import subprocess
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from incrowd import _files
from incrowd._private import make_ours
from incrowd._validate import count
from incrowd.errors import ConfigError
from incrowd.flower.superlink import PORT
from incrowd.parties.keys import AUTHORITY, SERVER, SERVER_KEY, certified, check_certificate, read_enrolment

CONFIGURATION = "nginx.conf"
_MODULE = Path("/usr/lib/nginx/modules/ngx_stream_module.so")  # Debian's module; elsewhere it is built in
_LONGEST_SOCKET = 100
_SAFE = re.compile(r"[\w./+-]+")
_LISTEN = re.compile(r"(\d{1,3}(\.\d{1,3}){3}|\[[0-9a-f:.]+\]):[1-9]\d{0,4}")


def write_proxy(folder: Path, keys: Path, enrolled: Path, *, listen: Sequence[str], port: int = PORT) -> int:
    """Write the configuration, and the map of the enrolled parties; `command` starts nginx, or has it read them anew.

    The server's authority signs the node key of each NAME.pub in `enrolled`: the party gets NAME.crt back.

    Guarantee: nginx admits a party with the certificate and the node key of one enrolment, and no other.
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
    paths = sorted(enrolled.glob("*.pub"))
    if not paths:
        remedy = "put the NAME.pub of each party there: nginx lets nobody else through"
        raise ConfigError(field="enrolled", value=str(enrolled), remedy=remedy)
    values = {
        "user": f"user {pwd.getpwuid(keys.stat().st_uid).pw_name};\n" if os.geteuid() == 0 else "",  # the keys' owner
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
    _files.write(folder / "parties.map", "".join(_line(keys, path) for path in paths))
    _files.write(folder / CONFIGURATION, text)
    return len(paths)


def command(folder: Path) -> list[str]:
    """The command that starts nginx; with `-s reload` it reads the configuration anew, with `-s quit` it ends."""
    return ["nginx", "-p", str(folder.resolve()), "-e", "logs/error.log", "-c", CONFIGURATION]


def reload_proxy(folder: Path) -> None:
    """Let the nginx of a folder read its configuration anew."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    words, environment = [*command(folder), "-s", "reload"], {**os.environ, "PATH": path}
    try:
        subprocess.run(words, env=environment, check=True, capture_output=True, timeout=30)  # noqa: S603  # fixed words
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            field="proxy", value=str(folder), remedy=f"start nginx first: {' '.join(words[:-2])}"
        ) from error


def _line(keys: Path, path: Path) -> str:
    """A party's line: the number of its certificate, as nginx writes it, beside its whole key."""
    party = read_enrolment(path)
    number = f"{certified(keys, party, path.with_suffix('.crt')).serial_number:X}"
    key = base64.b64encode(party.node_pem()).decode()
    return f'"{number.zfill(len(number) + len(number) % 2)}:{key}" {party.name};\n'


def _address(text: str) -> str:
    if not _LISTEN.fullmatch(text):
        remedy = "give ADDRESS:PORT, such as 0.0.0.0:9092 or [::]:9092"
        raise ConfigError(field="listen", value=text, remedy=remedy)
    return text
