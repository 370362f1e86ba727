"""The keys from which cohorts are drawn: noted before anybody trains, so that a cohort is drawn once.

Redrawing a cohort until somebody is in it would exceed the sampling probability that is charged. A key is a secret: it
lies in the user's state folder, for this user alone, and is gone when its round is charged.
"""

import json
import secrets
from weakref import WeakKeyDictionary

from incrowd import _files
from incrowd._private import make_ours, read_ours
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.state import state_folder

_IN_MEMORY: WeakKeyDictionary[Ledger, str] = WeakKeyDictionary()  # of ledgers that nobody keeps


def cohort_key(ledger: Ledger, reservation: str, round: int) -> bytes:
    """The key of a round's cohort: the same for all who ask, in any process of this user, until the round is charged.

    Guarantee: when it is given it is on disk (fsync), unless the ledger itself is in memory.
    """
    name = json.dumps([reservation, round])
    with ledger.held():
        keys = _read(ledger)
        if name not in keys:
            keys[name] = secrets.token_hex(32)
            _write(ledger, keys)
    return bytes.fromhex(keys[name])


def forget_cohorts(ledger: Ledger, reservation: str, *, upto: int) -> None:
    """Forget the keys of a reservation's rounds up to this one, which is charged: nobody can ask for it again."""
    with ledger.held():
        keys = _read(ledger)
        left = {name: key for name, key in keys.items() if not _over(name, reservation, upto)}
        if left != keys:
            _write(ledger, left)


def _over(name: str, reservation: str, upto: int) -> bool:
    label, number = json.loads(name)
    return bool(label == reservation and number <= upto)


def _read(ledger: Ledger) -> dict[str, str]:
    if not ledger.kept:
        text = _IN_MEMORY.get(ledger, "{}")
    else:
        try:
            text = read_ours(state_folder() / "cohorts" / ledger.id, secret=True).decode()
        except FileNotFoundError:
            text = "{}"
    keys: dict[str, str] = json.loads(text)
    return keys


def _write(ledger: Ledger, keys: dict[str, str]) -> None:
    if not ledger.kept:
        _IN_MEMORY[ledger] = json.dumps(keys)
        return
    path = state_folder() / "cohorts" / ledger.id
    make_ours(path.parent)
    if keys:
        _files.write(path, json.dumps(keys))
    else:
        path.unlink(missing_ok=True)
