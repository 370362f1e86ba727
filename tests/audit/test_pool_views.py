"""Who looks at a pool, or at what is published of it, learns no more than a contribution may tell; and what it may."""

from functools import cache

import numpy as np
import pytest

from incrowd import Specification
from incrowd.audit.device_plays import DeviceGame, DevicePlay
from incrowd.audit.finding import Finding
from incrowd.audit.odds import auc
from incrowd.audit.pool_plays import PoolGame
from incrowd.audit.pool_views import _before_and_after, _views, pool_findings
from incrowd.privacy.account.adversaries import Opportunity
from tests.audit.broken_units import laplace_is
from tests.drawdiscard.mail import KEYS

TRIALS = 2_000


def pool(**changes: object) -> PoolGame:
    asked = Specification.from_formula("opened ~ sender * words", **{**KEYS, **changes})
    return PoolGame(device=DeviceGame(specification=asked), others=8)


def found(game: PoolGame, play: DevicePlay | None = None) -> list[Finding]:
    play = rightly_played(game) if play is None else play
    return pool_findings(game, play, seed=1)


def rightly_played(game: PoolGame) -> DevicePlay:
    """What right devices send is the same, whatever the server's pool makes of it: it is played once."""
    told = game.device.specification.model_copy(update={"merge": 1.0, "instances": 1})
    return _played(told.to_json())


@cache
def _played(specification: str) -> DevicePlay:
    return DeviceGame(specification=Specification.from_json(specification)).play(1, TRIALS)


@pytest.mark.parametrize("merge", [1.0, 0.25])
def test_of_one_instance_before_and_after_tell_what_a_device_sends(merge: float) -> None:
    game = pool(instances=1, merge=merge)
    play = game.device.play(1, 300)
    scores = np.concatenate([_before_and_after(game, seen) for seen, _ in game.seen(play, seed=1)])
    assert scores == pytest.approx(play.scores, abs=1e-3)  # weights are float32


@pytest.mark.slow
@pytest.mark.parametrize("merge", [1.0, 0.25])
def test_nobody_learns_more_than_a_contribution_may_tell(merge: float) -> None:
    seen = found(pool(merge=merge))
    assert all(each.holds for each in seen)
    assert [each.trials for each in seen] == [TRIALS] * 6
    told = [seen[place] for place in (0, 1, 4, 5)]
    area = {name: each.auc or 0.0 for name, each in zip(["both", "moment", "average", "later"], told, strict=True)}
    assert area["both"] > 0.84  # who listens has .88
    assert area["both"] > area["average"] > area["later"]
    assert area["both"] > area["moment"] + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"merge": 1.0}, {"merge": 1.0, "instances": 1}])
def test_coins_that_nobody_used_are_not_told(changes: dict[str, object]) -> None:
    """The control: no view looks at the coins themselves, nor at anything but the pool."""
    game = pool(**changes)
    play = rightly_played(game)
    coins = np.random.default_rng(0).permutation(play.inside)
    for view in _views(game):
        scores = np.concatenate([view.score(game, seen) for seen, _ in game.seen(play, seed=1)])
        assert auc(scores[coins], scores[~coins]) == pytest.approx(0.5, abs=0.07)  # 2,000 coins err by .013


@pytest.mark.slow
@pytest.mark.parametrize("merge", [1.0, 0.25])
def test_who_looks_before_and_after_catches_short_noise(merge: float) -> None:
    with laplace_is(0.25)():
        game = pool(merge=merge)
        both, *_ = found(game, game.device.play(1, TRIALS))
    assert not both.holds
    assert both.claimed == 2.0


@pytest.mark.slow
def test_who_sees_the_published_average_catches_missing_noise() -> None:
    with laplace_is(0.01)():
        game = pool(merge=0.25, instances=2)
        found_out = found(game, game.device.play(1, TRIALS))
    average = next(each for each in found_out if "average that is published before and after" in each.attack)
    assert not average.holds


def test_what_is_modelled_decides_nothing_and_what_is_bounded_does() -> None:
    """The paper's figure for who sees one moment is an expectation; that for one instance later is a bound."""
    _, moment, _, later, *_ = found(pool(merge=1.0))
    assert moment.modelled == pytest.approx(3 / 8 * 2.0)
    assert moment.claimed == 2.0
    seen = Opportunity(instances=4, epsilon_per_update=2.0, updates_since=8)
    assert later.claimed == seen.epsilon(later.delta) < 2.0
    assert all(each.modelled is None and each.claimed == 2.0 for each in found(pool(merge=0.25)))


@pytest.mark.slow
def test_a_feature_is_looked_at_by_itself() -> None:
    seen = found(pool(privacy="feature", bound="element", merge=1.0))
    assert all(each.holds for each in seen)


def test_large_pools_are_followed_less_often() -> None:
    game = pool(instances=1_000)
    assert game.trials(rightly_played(game)) == 2_000_000_000 // (1_000**2 * game.numbers)


@pytest.mark.slow
def test_who_descends_from_whom_tells_which_instance_is_new() -> None:
    """The paper takes an update and its parent to be alike; an instance that others descend from is no new one."""
    moment = found(pool(instances=20, epsilon=8.0, merge=1.0))[1]
    assert "at one moment" in moment.attack
    assert moment.auc is not None
    assert moment.auc > 0.77  # .70 where either may be the new one
