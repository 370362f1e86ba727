"""Everything that incrowd raises on purpose: `IncrowdError` is the root."""


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
    """A service could not be reached, or did not answer as one. An answer that is paid for waits until it is fetched.

    `retry_after` are the seconds that it asked to wait, if it did.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RoundUnanswered(IncrowdError):
    """No party answered a server's round. The server releases no noise alone, and charges no further round."""


class RoundLost(DataError):
    """A listed party did not send its part of a masked sum. The round is paid for, and nothing of it is released."""


class RehearsalFailed(IncrowdError):
    """A step fails on synthetic records, and would on real ones. Nothing was spent and nothing released."""


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
