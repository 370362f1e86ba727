"""The smallest budget that suffices for an accuracy."""

from collections.abc import Callable

from incrowd.errors import BudgetExceeded
from incrowd.reproduce.geyer import Measured

LEAST, MOST = 1e-3, 10.0


def two_digits() -> list[float]:
    """Every number of two significant digits from `LEAST` to `MOST`, in order."""
    return [float(f"{tens / 10}e{power}") for power in (-3, -2, -1, 0) for tens in range(10, 100)] + [MOST]


def smallest(measured: Callable[[float], Measured], accuracy: float) -> Measured:
    """What was measured at the smallest epsilon, to two digits, whose mean accuracy is at least so much.

    The search halves the range, as if more budget were always better; so what it finds is enough, and the budgets just
    below that it tried were not.

    Edge cases: where not even epsilon 10 suffices, `BudgetExceeded`.
    """
    candidates = two_digits()
    low, high = -1, len(candidates) - 1
    found = measured(candidates[high])
    if found.accuracy < accuracy:
        raise BudgetExceeded(
            f"epsilon {MOST:g} reaches the accuracy {found.accuracy:.4f}, below {accuracy}: use another recipe"
        )
    while high - low > 1:
        middle = (low + high) // 2
        tried = measured(candidates[middle])
        if tried.accuracy >= accuracy:
            high, found = middle, tried
        else:
            low = middle
    return found
