"""Numbers that took long to compute, kept on disk: one small JSON file each.

The folder is ``$INCROWD_CACHE``, else ``$XDG_CACHE_HOME/incrowd``, else ``~/.cache/incrowd``; ``INCROWD_CACHE=off``
switches it off, and deleting it loses nothing but time.

The cache is a convenience and no evidence. Whoever can write the folder can state any price, so a folder that other
users of the machine may write to is not used; that leaves the user, and whatever runs as the user, who could as well
edit the installed code. Someone who checks a plan for others switches the cache off.
"""

import contextlib
import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

# Goes up with every change of what a stored number means.
_EDITION = 2


def recall(question: object) -> float | None:
    """The number that was kept for the question (anything that JSON can write), if one was.

    Guarantee: only exactly that: not another question's number or another version's of dp_accounting, no negative or
    infinite one, nothing from a damaged file.
    """
    key = _key(question)
    path = _path(key)
    try:
        entry = json.loads(path.read_bytes()) if path else None
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or entry.get("key") != key or not _is_answer(entry.get("value")):
        return None
    return float(entry["value"])


def keep(question: object, value: float) -> None:
    """Keep the number for the question, if it can be kept.

    Guarantee: several processes can share the folder: a file is there whole or not at all.

    Edge cases: a number that is infinite, negative or NaN is not kept; where the folder cannot be written, nothing
    happens.
    """
    key = _key(question)
    path = _path(key)
    if path is None or not _is_answer(float(value)):
        return
    new = path.with_name(f"{path.stem}.{secrets.token_hex(8)}.new")
    with contextlib.suppress(OSError):
        try:
            new.write_text(json.dumps({"key": key, "value": float(value)}))
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)


def remembered(question: object, compute: Callable[[], float]) -> float:
    """The number that was kept for the question, or else computed now and kept."""
    known = recall(question)
    if known is None:
        known = compute()
        keep(question, known)
    return known


def _key(question: object) -> str:
    return json.dumps([_EDITION, version("dp-accounting"), question], sort_keys=True)


def _path(key: str) -> Path | None:
    """Where the answer belongs, or nothing where there is no folder that is ours alone to write."""
    setting = os.environ.get("INCROWD_CACHE")
    if setting == "off":
        return None
    with contextlib.suppress(OSError, RuntimeError):
        base = os.environ.get("XDG_CACHE_HOME")
        folder = Path(setting) if setting else (Path(base) if base else Path.home() / ".cache") / "incrowd"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not folder.stat().st_mode & 0o022:
            return folder / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
    return None


def _is_answer(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value >= 0
