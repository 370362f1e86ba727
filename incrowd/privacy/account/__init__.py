"""What releases cost: events, accountants, calibration."""

from incrowd.privacy.account.accounting import Budget, Price, Relation, delta_at, first_bound, price
from incrowd.privacy.account.calibration import most_rounds, smallest_noise
from incrowd.privacy.account.events import compose
from incrowd.privacy.account.moments import LAMBDAS, log_moments, moments_delta, moments_price
from incrowd.privacy.account.remaining import CONSTANT_NOISE, PACES, Pace

__all__ = [
    "CONSTANT_NOISE",
    "LAMBDAS",
    "PACES",
    "Budget",
    "Pace",
    "Price",
    "Relation",
    "compose",
    "delta_at",
    "first_bound",
    "log_moments",
    "moments_delta",
    "moments_price",
    "most_rounds",
    "price",
    "smallest_noise",
]
