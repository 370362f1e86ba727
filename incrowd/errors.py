"""Everything that incrowd raises on purpose.

The tree::

    IncrowdError
    ├── ConfigError            an unusable value: names the field, the value and the remedy (also a ValueError)
    ├── DataError              unusable data: a broken file, a shape that does not fit (also a ValueError)
    │   └── RoundLost          a listed party did not send its part of a masked sum; the round is paid for
    ├── SpecificationRefused   a device will not do what a server asks; nothing was spent or released
    ├── ServiceFailed          a service cannot be reached, or does not answer as one; what was paid for waits
    ├── RoundUnanswered        nobody answers a server's round, so its noise alone is not released
    ├── RehearsalFailed        made-up records do not go the whole way, so nothing was charged for real ones
    ├── BudgetExceeded         the budget does not allow the next release; nothing was released
    │   └── NotToday           a day's limit does not allow it; the next day may
    ├── AccountingError        a cost cannot be stated, so nothing may be released
    │   └── UnpricedEvent      no accountant here knows this kind of event
    └── LedgerError            the ledger cannot be trusted or written, so nothing may be released
        ├── LedgerDamaged      truncated, edited, or not a ledger
        ├── LedgerRolledBack   older than its witness says: events are missing from the end
        ├── LedgerMismatch     a ledger of other data, another budget or another relation
        ├── LedgerMisplaced    a copy, a second name, a backup, or what others may write: not the ledger itself
        └── LedgerUnwritable   disk full, no permission, or another process holds it too long
"""


class IncrowdError(Exception):
    """The root: catch this to catch everything that incrowd raises on purpose."""


class ConfigError(IncrowdError, ValueError):
    """A value that cannot be used.

    Guarantee: the message names the field, shows the value and says what to do.
    """

    def __init__(self, *, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field} = {value!r}: {remedy}")
        self.field = field
        self.value = value
        self.remedy = remedy


class DataError(IncrowdError, ValueError):
    """Data that cannot be used: a broken file, a shape that does not fit, a label out of range."""


class SpecificationRefused(IncrowdError):
    """A device will not do what a server asks of it. Nothing was spent and nothing was released."""


class ServiceFailed(IncrowdError):
    """A service could not be reached, or did not answer as one. What was paid for and has not arrived waits.

    `retry_after` are the seconds that it asked to wait, if it did.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RoundUnanswered(IncrowdError):
    """Nobody answered a server's round. Noise alone is not released; no further round is charged."""


class RoundLost(DataError):
    """A listed party did not send its part of a masked sum. The round is paid for, and nothing of it is released."""


class RehearsalFailed(IncrowdError):
    """Something fails on records that are made up, and would on real ones. Nothing was spent and nothing released."""


class BudgetExceeded(IncrowdError):
    """The next event would exceed the budget. It did not happen and nothing was spent on it."""


class NotToday(BudgetExceeded):
    """The next event would exceed the limit of a day. It did not happen; on the next day it may."""


class AccountingError(IncrowdError):
    """The cost of something cannot be stated, so it must not happen."""


class UnpricedEvent(AccountingError):
    """No accountant here knows this kind of event under this neighbouring relation."""


class LedgerError(IncrowdError):
    """The ledger cannot be trusted or cannot be written, so nothing may be released."""


class LedgerDamaged(LedgerError):
    """The file is truncated, edited, or not a ledger at all."""


class LedgerRolledBack(LedgerError):
    """The file is older than its witness says: events are missing from its end."""


class LedgerMismatch(LedgerError):
    """The ledger belongs to other data, another budget or another neighbouring relation."""


class LedgerMisplaced(LedgerError):
    """Not the ledger itself but a copy of it, a second name, a backup, or a file that others may write."""


class LedgerUnwritable(LedgerError):
    """The event could not be put on disk: disk full, no permission, or another process holds the file."""
