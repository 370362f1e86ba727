"""All ledgers that a user has, at a glance: of which data, what is spent, what may be, where they are."""

from typing import Any

from incrowd.privacy.ledger.home import Home
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.privacy.ledger.registry import Registered

LedgerSummary = dict[str, Any]


def overview(home: Home) -> list[LedgerSummary]:
    """A row for each registered ledger; nothing is made or changed.

    Edge cases: no registry: no rows. A ledger that is gone or not intact has the problem in its row.
    """
    return [_row(known) for known in home.registry.ledgers()] if home.registry.path.exists() else []


def describe(ledger: Ledger) -> LedgerSummary:
    """What its terms and its reservations say."""
    its = ledger.data_identity
    return {
        "budget": {"epsilon": ledger.budget.epsilon, "delta": ledger.budget.delta},
        "relation": ledger.relation.name,
        "data": str(its),
        "public": its.public,
        "unit": its.unit,
        "division": its.division,
        "id": ledger.id,
        "forgets": [vars(each) for each in ledger.forgets],
        "reserved": {
            each.label: f"{each.charged} of {each.events} charged{', released' * each.released}"
            for each in ledger.reservations()
        },
    }


def _row(known: Registered) -> LedgerSummary:
    row: LedgerSummary = {"intact": False, "problem": f"{known.path} is not there", "epsilon": None, "delta": None}
    budget = None
    if known.path.exists():
        row = dict(verify(known.path))
        if row["intact"]:
            with Ledger.read(known.path) as ledger:
                budget = ledger.budget.epsilon
    return {
        "name": known.names[0] if known.names else None,
        "names": list(known.names),
        "unit": known.unit,
        "spent": row["epsilon"],
        "budget": budget,
        "delta": row["delta"],
        "entries": known.mark.entries,
        "intact": row["intact"],
        "problem": row["problem"],
        "retired": known.retired,
        "ledger": str(known.path),
        "witness": str(known.witness),
    }
