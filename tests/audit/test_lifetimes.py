"""All that a device sends in its life tells no more than its ledger charged; of devices that are broken it does."""

import pytest

from incrowd import Specification
from incrowd.audit.finding import Check, Finding
from incrowd.audit.lifetimes import A_DAY, IN_ALL, LifetimeGame, lifetime_looks
from tests.audit.broken_units import LIVES, charges_elsewhere, laplace_is
from tests.drawdiscard.mail import KEYS

KINDS: dict[str, dict[str, object]] = {
    "whole": {},
    "numbers": {"bound": "element"},
    "feature": {"bound": "element", "privacy": "feature"},
    "gaussian": {"noise": "gaussian", "delta": 1e-6},
    "fine": {"gamma": 1e-6, "epsilon": 20.0},
}


def game(**changes: object) -> LifetimeGame:
    return LifetimeGame(specification=Specification.from_formula("opened ~ sender * words", **{**KEYS, **changes}))


def looks(changes: dict[str, object], lives: int = 40) -> tuple[Finding, list[Check]]:
    return lifetime_looks(game(**changes).specification, lives=lives, seed=2, confidence=0.95)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_device_passes(kind: str) -> None:
    finding, checks = looks(KINDS[kind])
    assert finding.holds
    assert [check.name for check in checks if not check.holds] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", LIVES)
def test_a_broken_device_is_caught(name: str) -> None:
    breakage, witness = LIVES[name]
    with breakage():
        _, checks = looks({})
    assert any(witness in check.name for check in checks if not check.holds), checks


@pytest.mark.slow
def test_what_is_charged_in_all_bounds_what_is_found() -> None:
    """Three contributions of epsilon 2; and two thirds of them charged elsewhere, where one would not tell so much."""
    right, _ = looks({}, 200)
    assert right.claimed == pytest.approx(6.0)
    assert right.lower_bound is not None
    assert 1.0 < right.lower_bound < 6.0
    with charges_elsewhere(lambda _: True)():
        wrong, _ = looks({}, 100)
    assert wrong.claimed == 0.0
    assert not wrong.holds


@pytest.mark.slow
def test_short_noise_shows_in_a_life() -> None:
    with laplace_is(0.01)():
        finding, _ = looks({"epsilon": 0.5}, 250)
    assert finding.claimed == pytest.approx(1.5)
    assert not finding.holds


@pytest.mark.parametrize("kind", KINDS)
def test_the_two_tables_are_as_far_apart_as_the_bound_allows(kind: str) -> None:
    played = game(**KINDS[kind])
    mechanism = played.asked.mechanism
    for sign in (1.0, -1.0):
        first, second = (played.gradient(played.weights(sign), table) for table in (0, 1))
        apart = abs(first - second)
        if mechanism.bound == "element":
            assert apart == pytest.approx([2 * mechanism.clip] * 2)
        elif mechanism.noise == "laplace":
            assert apart.sum() == pytest.approx(2 * mechanism.clip, rel=1e-6)
        else:
            assert (apart**2).sum() ** 0.5 > 1.95 * mechanism.clip
        assert (first[0] > 0 > second[0]) == (sign > 0)


def test_a_device_lives_within_its_limits() -> None:
    life = game().live(1)
    assert sum(life.days) == len(life.noise) == life.charges == IN_ALL
    assert max(life.days) == A_DAY
