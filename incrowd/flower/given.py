"""What a party has given, to whom and at what noise: read from its own files, for its owner."""

from pathlib import Path
from typing import Any

from incrowd.errors import ConfigError
from incrowd.flower.memory import PartyMemory
from incrowd.privacy.ledger.ledger import Ledger, verify

LEDGER, MEMORY = "ledger.sqlite", "answers.sqlite"
_UNSPENT = {"intact": True, "problem": None, "events": 0, "epsilon": 0.0, "delta": None, "head": None}


def given(file: Path, *, begun: bool = True) -> dict[str, Any]:
    """What was charged to a party's ledger, a row a round, what it comes to, and what the party refused.

    Guarantee: nothing is made or changed.

    Edge cases: the folder of a party stands for its ledger. A ledger that is not intact is shown with its problem and
    without rows. Without the party's answers beside it, nobody knows what was refused. A party that has accepted no
    offer has no ledger yet, and has given nothing; unless it was `begun`, a party that was never asked has neither.
    """
    path = file / LEDGER if file.is_dir() else file
    beside = path.with_name(MEMORY)
    asked, refused = _remembered(beside) if beside.exists() else (set(), [])
    there = any(path.parent.glob(f"{path.name}*"))  # a witness without its ledger, too
    if not there and (asked or (begun and not refused)):
        raise ConfigError(field="file", value=str(file), remedy="give the ledger of a party, or its folder")
    found: dict[str, Any] = {**(verify(path) if there else _UNSPENT), "events": [], "refused": refused}
    if there and found["intact"]:
        with Ledger.read(path) as ledger:
            found["budget"] = {"epsilon": ledger.budget.epsilon, "delta": ledger.budget.delta}
            found["promised"] = ledger.promised().epsilon
            found["events"] = [_row(each.at, each.content()) for each in ledger.entries() if each.kind == "charge"]
    for row in found["events"]:
        row["asked"] = (row["plan"], row["round"]) in asked
    return found


def _row(at: str, content: dict[str, Any]) -> dict[str, Any]:
    note = content["note"]
    return {"at": at[:19], **{name: note.get(name) for name in ("server", "plan", "what", "round", "noise_multiplier")}}


def _remembered(path: Path) -> tuple[set[tuple[str, int]], list[dict[str, Any]]]:
    memory = PartyMemory.read(path)
    try:
        return memory.asked(), memory.refusals()
    finally:
        memory.close()
