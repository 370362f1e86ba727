"""The smallest budget that suffices for an accuracy."""

from collections.abc import Callable

from incrowd import BudgetExceeded
from papers.geyer.measure import Measured

LEAST, MOST = 1e-3, 10.0
INIT_SCALE = 0.03  # small budgets are quick to measure
_STRIDE = 45


def two_digits() -> list[float]:
    """Every number of two significant digits from `LEAST` to `MOST`, in order."""
    return [float(f"{tens / 10}e{power}") for power in (-3, -2, -1, 0) for tens in range(10, 100)] + [MOST]


def smallest(measured: Callable[[float], Measured], accuracy: float) -> Measured:
    """What was measured at the smallest epsilon, to two digits, whose mean accuracy is at least so much.

    The search assumes that more budget is better, walks to a range that holds the answer, and halves it. What it finds
    is enough; the budgets just below that it tried were not.

    Edge cases: where not even epsilon 10 suffices, `BudgetExceeded`; where 0.001 does, that.
    """
    candidates = two_digits()
    tried: dict[int, Measured] = {}

    def suffices(place: int) -> bool:
        if place not in tried:
            tried[place] = measured(candidates[place])
        return tried[place].accuracy >= accuracy

    low = high = candidates.index(INIT_SCALE)
    while not suffices(high):
        if high == len(candidates) - 1:
            reached = tried[high].accuracy
            raise BudgetExceeded(f"epsilon {MOST:g} reaches {reached:.4f}, below {accuracy}: use another recipe")
        low, high = high, min(high + _STRIDE, len(candidates) - 1)
    while suffices(low):
        if low == 0:
            return tried[low]
        low, high = max(low - _STRIDE, 0), low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return tried[high]
