"""What a notebook shows of a ledger: whom it protects, what is spent, what is left to others."""

from pathlib import PurePath
from typing import Protocol

from incrowd._html import html_table
from incrowd.errors import LedgerError
from incrowd.privacy.account.accounting import Budget, Price, Relation
from incrowd.privacy.ledger.identity import DataIdentity


class Spending(Protocol):
    """What a ledger tells of itself."""

    @property
    def data_identity(self) -> DataIdentity:
        """The data it is about."""
        ...

    @property
    def budget(self) -> Budget:
        """What may be spent."""
        ...

    @property
    def relation(self) -> Relation:
        """The neighbours of its prices."""
        ...

    @property
    def kept(self) -> bool:
        """Whether it is a file."""
        ...

    def charges(self) -> tuple[int, int]:
        """How many there are, and how many of seeded noise."""
        ...

    def spent(self) -> Price:
        """The price of what was charged."""
        ...

    def promised(self) -> Price:
        """The price of what was charged or is reserved."""
        ...


def html_of(ledger: Spending) -> str:
    """The ledger as a table.

    Guarantee: notebooks are handed on, so no path, no fingerprint, no note and no label is in it: what it shows is
    in a statement, too. Edge cases: of a ledger that is closed, or cannot be relied on, it says that.
    """
    try:
        return html_table(_facts(ledger))
    except LedgerError as error:
        return html_table({"ledger": f"cannot be read now: {type(error).__name__}"})


def _facts(ledger: Spending) -> dict[str, object]:
    its, budget = ledger.data_identity, ledger.budget
    charges, simulated = ledger.charges()
    spent = ledger.spent()
    return {
        "data": PurePath(its.name).name or "-",  # some are named by the path of their file
        "public": "yes: they hide nobody" if its.public else "no",
        "protects": its.unit or "-",
        "relation": ledger.relation.name,
        "epsilon spent": f"{spent.epsilon:.6g}, of {budget.epsilon:g}",
        "spent or reserved": f"{ledger.promised().epsilon:.6g}",
        "delta": f"{budget.delta:g}",
        "accountant": spent.accountant,
        "charges": charges if not simulated else f"{charges}, {simulated} of them of seeded noise: a SIMULATION",
        "kept": "in a file" if ledger.kept else "in memory only: forgotten with the process",
    }
