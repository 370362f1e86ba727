"""Where a search ended before, kept on disk so that it need not begin from nothing: one small JSON file each.

The folder is ``$INCROWD_CACHE``, else ``$XDG_CACHE_HOME/incrowd``, else ``~/.cache/incrowd``; ``INCROWD_CACHE=off``
switches it off, and deleting it loses nothing but time.

A hint is no evidence. No price is kept, only answers of searches, and a search computes what its hint costs, and what
its neighbour would, before it believes it. So even someone who could write the folder could only waste time; a folder
or file that other users may write, or that is theirs, is not used all the same.
"""

import contextlib
import hashlib
import json
import math
import os
import secrets
from importlib.metadata import version
from pathlib import Path

from incrowd._private import make_ours, read_ours
from incrowd.errors import ConfigError

# Goes up with every change of what a stored number means.
_EDITION = 3


def recall(question: object) -> float | None:
    """The number that was kept for the question (anything that JSON can write), if one was.

    Guarantee: only exactly that: not another question's number or another version's of dp_accounting, no negative or
    infinite one, nothing from a file that is damaged (each has a checksum) or that other users may have written.
    """
    key = _key(question)
    try:
        entry = json.loads(read_ours(_folder() / _name(key)))
    except (OSError, ValueError, RecursionError, RuntimeError):
        return None
    if not isinstance(entry, dict) or not _is_answer(entry.get("value")) or entry != _entry(key, entry["value"]):
        return None
    return float(entry["value"])


def keep(question: object, value: float) -> None:
    """Keep the number for the question, if it can be kept.

    Guarantee: several processes can share the folder: a file is there whole or not at all.

    Edge cases: a number that is infinite, negative or NaN is not kept; where the folder cannot be written, or is not
    this user's alone to write, nothing happens.
    """
    key = _key(question)
    if not _is_answer(float(value)):
        return
    with contextlib.suppress(OSError, RuntimeError, ConfigError):
        folder = _folder()
        make_ours(folder)
        new = folder / f"{secrets.token_hex(8)}.new"
        try:
            new.touch(mode=0o600, exist_ok=False)
            new.write_text(json.dumps(_entry(key, float(value))))
            new.replace(folder / _name(key))
        finally:
            new.unlink(missing_ok=True)


def _key(question: object) -> str:
    return json.dumps([_EDITION, version("dp-accounting"), question], sort_keys=True)


def _name(key: str) -> str:
    return f"{hashlib.sha256(key.encode()).hexdigest()}.json"


def _entry(key: str, value: float) -> dict[str, object]:
    checksum = hashlib.sha256(json.dumps([key, value]).encode()).hexdigest()
    return {"key": key, "value": value, "checksum": checksum}


def _folder() -> Path:
    """Where answers belong. Edge cases: nowhere (switched off, no home) raises an error that callers expect."""
    setting = os.environ.get("INCROWD_CACHE")
    if setting == "off":
        raise FileNotFoundError("switched off")
    if setting:
        return Path(setting)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "incrowd"


def _is_answer(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value >= 0
