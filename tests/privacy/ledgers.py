"""What the tests of the ledger share: cheap events, ledgers of them, and processes that may be killed."""

import os
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dp_accounting import GaussianDpEvent

from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger

BUDGET = Budget(epsilon=1.0, delta=1e-5)
RELATION = Relation.ADD_OR_REMOVE_ONE
IDENTITY = "patients of 2024"

# Releases about everyone are priced in closed form, in no time. 7 of these fit in the budget, and not 8.
EVENT = GaussianDpEvent(10.0)
FITS = 7

# Thousands of these fit.
SMALL = GaussianDpEvent(300.0)


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder in memory where there is one: what is tested does not depend on the disk, and no disk slows it down."""
    memory = Path("/dev/shm")  # noqa: S108 - the folder made there is private
    with tempfile.TemporaryDirectory(prefix="incrowd-", dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


def begin(path: Path, *, witness: Path | None = None) -> Ledger:
    """The ledger at the path, begun if need be."""
    return Ledger.open(path, budget=BUDGET, relation=RELATION, data_identity=IDENTITY, witness=witness)


def in_memory() -> Ledger:
    """A ledger without files."""
    return Ledger.in_memory(budget=BUDGET, relation=RELATION, data_identity=IDENTITY)


def written(path: Path, *, events: int) -> str:
    """Leave a closed ledger with so many charges on a reservation; returns its head."""
    with begin(path) as ledger:
        ledger.reserve([(SMALL, events)], label="run")
        for number in range(events):
            ledger.charge(SMALL, reservation="run", note={"round": number})
        return ledger.head


def start(work: Callable[[], object]) -> int:
    """Do the work in a forked process; returns its id. Its status is 0, or 1 where the work raised."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # some libraries keep idle threads, which the child never uses
        process = os.fork()
    if process:
        return process
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def status_of(process: int) -> int:
    """Wait for a process; its exit status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
