"""The price of releases: events, accountants, calibration."""

from incrowd.privacy.account.accounting import Price, delta_at, first_bound, price
from incrowd.privacy.account.calibrate import most_rounds, smallest_noise
from incrowd.privacy.account.events import compose, mechanisms

__all__ = ["Price", "compose", "delta_at", "first_bound", "mechanisms", "most_rounds", "price", "smallest_noise"]
