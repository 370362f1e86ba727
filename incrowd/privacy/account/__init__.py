"""What releases cost: events, accountants, calibration."""

from incrowd.privacy.account.accounting import Budget, Price, Relation, delta_at, first_bound, price
from incrowd.privacy.account.calibration import most_rounds, smallest_noise
from incrowd.privacy.account.events import compose
from incrowd.privacy.account.moments import LAMBDAS, log_moments, moments_delta, moments_price
from incrowd.privacy.account.opacus_history import event_from_history, history_from_event
from incrowd.privacy.account.remaining import CONSTANT_NOISE, PACES, Pace
from incrowd.privacy.account.selection import Repetitions

__all__ = [
    "CONSTANT_NOISE",
    "LAMBDAS",
    "PACES",
    "Budget",
    "Pace",
    "Price",
    "Relation",
    "Repetitions",
    "compose",
    "delta_at",
    "event_from_history",
    "first_bound",
    "history_from_event",
    "log_moments",
    "moments_delta",
    "moments_price",
    "most_rounds",
    "price",
    "smallest_noise",
]
