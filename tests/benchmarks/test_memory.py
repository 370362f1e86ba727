import pytest

from contest.memory import large_round
from contest.works import Work


@pytest.mark.slow
def test_memory_is_that_of_a_process_of_its_own() -> None:
    """This process holds more than the round does, and the answer does not show it."""
    ballast = bytearray(b"x") * 1_500_000_000
    found = large_round(None, work=Work(name="small", widths=(784, 6, 10), cohort=50, examples=30), cohort=10)
    assert len(ballast) == 1_500_000_000
    assert 100 < found["megabytes"] < 1400
    assert found["seconds"] > 0
    assert (found["clients"], found["cohort"], found["weights"]) == (50, 10, 784 * 6 + 6 + 6 * 10 + 10)
