"""The folder in which a user's ledgers are known: made for this user alone, with a key that nobody else can read."""

import os
import secrets
from pathlib import Path

from incrowd._private import make_ours, read_ours
from incrowd.errors import LedgerDamaged

KEY = "key"
_BYTES = 32


def state_folder() -> Path:
    """$INCROWD_STATE, or $XDG_STATE_HOME/incrowd, or ~/.local/state/incrowd. It need not be there."""
    if named := os.environ.get("INCROWD_STATE"):
        return Path(named).absolute()
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state").absolute() / "incrowd"


def key_in(folder: Path) -> bytes:
    """The key for fingerprints, made at its first use.

    Guarantee: all who ask get the same key, however many ask at once and whenever one of them is killed; the file and
    its folder are for this user alone, and refused (`ConfigError`) where others could read or write them.

    Edge cases: a file of another length raises `LedgerDamaged`. A key that is gone is replaced by a new one, under
    which nothing is recognised that was known by the old one's fingerprints.
    """
    path = folder / KEY
    try:
        key = read_ours(path, secret=True)
    except FileNotFoundError:
        _make_key(path)
        key = read_ours(path, secret=True)
    if len(key) != _BYTES:
        raise LedgerDamaged(f"{path} is not a key: put the right one back; without it data are known by name alone")
    return key


def sync(folder: Path) -> None:
    """A file that was made, renamed or removed is on disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_key(path: Path) -> None:
    make_ours(path.parent)
    fresh = path.with_name(f"{KEY}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(secrets.token_bytes(_BYTES))
        file.flush()
        os.fsync(descriptor)
    try:
        os.link(fresh, path)  # unlike a rename, this never replaces a key that another process has just made
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    sync(path.parent)
