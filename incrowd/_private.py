"""Files and folders that only this user can change.

A ledger, a key or a stored number protects nothing if another user of the machine can write, rename or replace it.
"""

import atexit
import errno
import os
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path

from incrowd.errors import ConfigError

_MOST_LINKS = 40


def check_ours(path: str | os.PathLike[str], *, secret: bool = False) -> None:
    """Refuse a path where anyone but this user and root decides what is found there (`ConfigError`).

    Guarantee: each folder, link and file from the root to the path belongs to this user or to root. No other user may
    write it. A folder that all may write (such as /tmp) has to be sticky, so that others cannot replace its files. With
    `secret`, others cannot read the file at the path.

    Edge cases: a path that does not exist yet is not checked: make it (`make_ours`), then check again. The modes do not
    show access by root or through the device; access control lists show as the group's.
    """
    remaining = _parts(Path(path).absolute())  # with its `..`, which after a link do not mean what they seem to
    at, links = Path("/"), 0
    _check(at, at.lstat(), last=False, secret=False)
    while remaining:
        name = remaining.pop()
        at = at.parent if name == ".." else at / name
        try:
            status = at.lstat()
        except FileNotFoundError:
            return
        _check(at, status, last=not remaining, secret=secret)
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise ConfigError(field="path", value=str(path), remedy="its symbolic links lead round in circles")
            target = at.readlink()
            remaining += _parts(target)
            at = Path("/") if target.is_absolute() else at.parent


def make_ours(folder: str | os.PathLike[str]) -> None:
    """Make a folder, and those above it that are missing, for this user alone (0700), and check the whole path."""
    check_ours(folder)
    folder = Path(folder).absolute()
    for each in reversed([folder, *folder.parents]):
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)
    check_ours(folder)


@cache
def compiled_code(of: str) -> Path:
    """The folder for code that a compiler makes, which is loaded and run: in $XDG_CACHE_HOME/incrowd or
    ~/.cache/incrowd.

    Guarantee: only this user can read or write it, and no other user can write the folders on the way to it.

    Edge cases: if the path is not safe, it is a new folder, which is removed when the process ends.
    """
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(home) if home else Path.home() / ".cache").absolute() / "incrowd" / of
        make_ours(folder)
        check_ours(folder, secret=True)
    except (ConfigError, OSError, RuntimeError):
        folder = Path(tempfile.mkdtemp(prefix="incrowd-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def read_ours(path: str | os.PathLike[str], *, secret: bool = False) -> bytes:
    """The content of a file that only this user can have written.

    Guarantee: see `check_ours`; the file that was checked is the one that is read.

    Edge cases: no file there raises `FileNotFoundError`; a link, a folder, a device or a pipe is refused, and not
    waited for.
    """
    check_ours(path, secret=secret)
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ConfigError(field="path", value=str(path), remedy="it is a link: name the file itself") from error
    status = os.fstat(opened)
    if not stat.S_ISREG(status.st_mode):
        os.close(opened)
        raise ConfigError(field="path", value=str(path), remedy="it is not a plain file")
    with os.fdopen(opened, "rb") as file:
        _check(Path(path), status, last=True, secret=secret)
        return file.read()


def _parts(path: Path) -> list[str]:
    """The names on the way, the last one first."""
    return [part for part in reversed(path.parts) if part != path.root]


def _check(path: Path, status: os.stat_result, *, last: bool, secret: bool) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (0, os.geteuid()):
        remedy = f"it belongs to user {status.st_uid}, who decides what is in it: choose a place of your own"
        raise ConfigError(field="path", value=str(path), remedy=remedy)
    if stat.S_ISLNK(status.st_mode):  # its mode says nothing
        return
    shared = stat.S_ISDIR(status.st_mode) and mode & stat.S_ISVTX and not last
    if mode & 0o022 and not shared:
        remedy = f"other users may write it: chmod go-w {path}, or choose another place"
        raise ConfigError(field="path", value=str(path), remedy=remedy)
    if last and secret and mode & 0o077:
        raise ConfigError(field="path", value=str(path), remedy=f"other users may read it: chmod go-rwx {path}")
