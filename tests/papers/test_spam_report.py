"""The spam experiment on little traffic."""

import pytest

from incrowd.errors import ConfigError
from papers.ddml.attacks import drift, scaled
from papers.ddml.spam import Spam, digits


def test_honest_traffic_is_turned_away_about_as_often_as_wanted() -> None:
    rate = 0.05
    found = Spam(rate=rate, honest=4_000).honest_traffic(5, 40)
    tolerance = 4 * found["standard_error"]
    assert found["rejected"] == pytest.approx(rate, abs=tolerance)
    assert tolerance < rate / 2
    assert abs(found["rejected"] - 2 * rate) > tolerance
    assert found["rejected_with_t_of_3"] > 4 * rate


def test_the_same_seed_gives_the_same_traffic() -> None:
    first, again, other = (Spam(honest=200, seed=seed).honest_traffic(3, 10) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.slow
def test_an_attack_that_shows_is_turned_away_and_one_in_the_noise_is_not() -> None:
    found = Spam(
        honest=40, updates=400, instances=3, attackers=0.2, pools=((3, 10),), attacks=(scaled(1_000), drift(0.1))
    ).report()
    none, loud, quiet = found["attacks"]
    assert (none["attack"], none["attackers_rejected"]) == ("none", 0.0)
    assert loud["attackers_rejected"] > 0.9
    assert quiet["attackers_rejected"] < 0.1
    assert loud["accuracy_with_test"] > loud["accuracy_without_test"]
    assert not found["findings"][2]["agrees"]  # the quiet one got through


def test_the_digits_are_within_range() -> None:
    problem = digits(4)
    assert problem.features.shape[1:] == (10, 64)
    assert 0 <= problem.features.min() <= problem.features.max() == 1
    assert problem.instances == 4


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="rate"):
        Spam(rate=0.0)
    with pytest.raises(ConfigError, match="attackers"):
        Spam(attackers=1.0)
    with pytest.raises(ConfigError, match="honest"):
        Spam(honest=3)
    for one in ({"instances": 1}, {"pools": ((5, 10), (1, 10))}):
        with pytest.raises(ConfigError, match="instances = 1"):
            Spam(**one)
    with pytest.raises(ConfigError, match="pools"):
        Spam(pools=((5, 0),))
