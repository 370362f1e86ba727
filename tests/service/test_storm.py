"""Load with the server killed and started again six times: nothing is gone but what may be, and memory is flat."""

import pytest

from contest.storm import Storm

ENOUGH = 200
"""So many answers a storm has to bring, or it says nothing."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("redis", [False, True], ids=["memory", "redis"])
def test_nothing_that_was_acknowledged_is_gone(redis: bool) -> None:
    report = Storm(seconds=21.0, kills=6, redis=redis, redis_kills=redis, weights=387, keep_every=1.0).run()
    assert len(report.lives) == 7
    assert sum(life.acknowledged for life in report.lives) > ENOUGH
    assert report.kept_its_word, report.to_dict()
    if redis:
        assert all(life.lost == 0 for life in report.lives)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_pool_that_is_hardly_ever_kept_loses_and_that_is_noticed() -> None:
    """The control: what counts as lost is found."""
    report = Storm(seconds=12.0, kills=1, keep_every=1e6, weights=387).run()
    assert sum(life.lost for life in report.lives) > ENOUGH


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_memory_is_flat() -> None:
    report = Storm(seconds=60.0, kills=1, weights=387).run()
    assert report.growth_mb < 10, report.to_dict()
