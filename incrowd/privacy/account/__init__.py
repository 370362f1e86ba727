"""The price of releases: events, accountants, calibration."""

from incrowd.privacy.account.accounting import Budget, Price, Relation, delta_at, first_bound, price
from incrowd.privacy.account.calibrate import most_rounds, smallest_noise
from incrowd.privacy.account.events import compose, mechanisms

__all__ = [
    "Budget",
    "Price",
    "Relation",
    "compose",
    "delta_at",
    "first_bound",
    "mechanisms",
    "most_rounds",
    "price",
    "smallest_noise",
]
