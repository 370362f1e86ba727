"""The spam experiment on little traffic."""

import math
from dataclasses import replace

import numpy as np
import pytest

from incrowd import SeededRandomness
from incrowd.drawdiscard import LOGISTIC, Glm
from incrowd.errors import ConfigError
from incrowd.privacy.mechanism import Mechanism
from papers.ddml.attacks import ATTACKS, Attack, after_half, any_time, first_of_all, in_bursts
from papers.ddml.spam import Spam, digits
from papers.ddml.spam_study import TESTS, Problem, Study, band_threshold


def small(noise: str = "laplace") -> Problem:
    """Logistic regression of 39 features, 40 devices of 5 examples."""
    stream = SeededRandomness(3).stream("small")
    model = Glm(features=39, link=LOGISTIC, outputs=1)
    good = stream.normals(model.size)
    features = stream.normals(240 * 5 * 39).reshape(-1, 39)
    responses = (features @ good[1:] + good[0] > 0).astype(float)[:, None]
    gaussian = {"noise": "gaussian", "delta": 1e-5} if noise == "gaussian" else {}
    return Problem(
        model=model,
        mechanism=Mechanism(size=model.size, clip=0.2, epsilon=math.log(32), privacy="feature", **gaussian),  # type: ignore[arg-type]  # two sets of words
        gamma=0.05,
        instances=5,
        features=features[:1000].reshape(200, 5, 39),
        responses=responses[:1000].reshape(200, 5, 1),
        test_features=features[1000:],
        test_responses=responses[1000:],
        good=good,
    )


NAMED = {attack.name: attack for attack in ATTACKS}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NAMED))
def test_every_attack_goes_through_every_test(name: str) -> None:
    study = Study(problem=small(), attackers=0.3, updates=60)
    for test in TESTS:
        trained = study.train(NAMED[name], test=test, strength=NAMED[name].strengths[0], harm="sizes")
        assert (trained.attack, trained.test) == (name, test)
        assert 0 <= trained.accuracy <= 1
        assert 0 <= trained.attackers_rejected <= 1


@pytest.mark.slow
def test_an_attack_that_ruins_a_model_does_not_ruin_it_behind_the_test() -> None:
    study = Study(problem=small(), attackers=0.2, updates=4_000)
    attack = NAMED["drawn + c sigma"]
    calm, without, behind = (
        study.train(one, test=test, strength=1.2, harm="signs")
        for one, test in ((None, "residual"), (attack, "none"), (attack, "residual"))
    )
    assert calm.accuracy > 0.8
    assert without.accuracy < calm.accuracy - 0.2  # the control
    assert behind.accuracy > calm.accuracy - 0.1
    assert behind.attackers_rejected > 0.9
    assert behind.honest_rejected < 0.03


def test_honest_devices_are_the_same_whatever_the_test() -> None:
    study = Study(problem=small(), attackers=0.3, updates=40, rate=1e-3)
    first, again = (study.train(None, test=test) for test in ("none", "fixed"))
    assert first.accuracy == again.accuracy
    assert study.train(None, test="none") == first
    assert replace_seed(study, 9).train(None, test="none") != first


def replace_seed(study: Study, seed: int) -> Study:
    return Study(problem=study.problem, attackers=study.attackers, updates=study.updates, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{"merge": 0.5}, {"falls_by": 6.0}, {"in_flight": 7}, {"seed": 2}])
def test_what_a_specification_may_say_changes_a_training(changed: dict[str, float]) -> None:
    study = Study(problem=small(), attackers=0.3, updates=2_500)
    other = Study(problem=small(), attackers=0.3, updates=2_500, **changed)  # type: ignore[arg-type]  # by name
    same, trained = (one.train(None, test="residual") for one in (study, other))
    assert trained != same
    assert trained.honest_rejected < 0.03


def test_gaussian_noise_can_be_studied_too() -> None:
    trained = Study(problem=small("gaussian"), attackers=0.3, updates=400).train(None, test="fixed")
    assert trained.honest_rejected < 0.05


@pytest.mark.slow
def test_a_band_turns_away_about_as_many_as_wanted_of_noise_alone() -> None:
    problem = small()
    problem = replace(problem, features=np.zeros_like(problem.features), responses=0.5 + 0 * problem.responses)
    study = Study(problem=problem, attackers=0.3, updates=3_000, rate=0.05)
    assert 0.01 < study.train(None, test="band").honest_rejected < 0.1
    assert band_threshold(problem, rate=0.05, updates=2_000) < band_threshold(problem, rate=0.005, updates=2_000)


def test_attackers_come_when_they_are_said_to() -> None:
    coins = np.linspace(0, 1, 1000, endpoint=False)
    for schedule, shares in ((any_time, (0.2, 0.2)), (after_half, (0.0, 0.2)), (first_of_all, (0.68, 0.2))):
        halves = [
            np.mean([schedule(0.2, number, 2_000, coins[number * 7 % 1000]) for number in numbers])
            for numbers in (range(1_000), range(1_000, 2_000))
        ]
        assert halves == pytest.approx(shares, abs=0.04)
    bursts = [in_bursts(0.2, number, 3_000, 0.0) for number in range(3_000)]
    assert np.mean(bursts) == pytest.approx(0.2)
    assert all(bursts[:300])
    assert not any(bursts[300:1_500])


def test_noise_alone_is_turned_away_about_as_often_as_wanted() -> None:
    found = Spam(rate=0.05, honest=4_000).noise_alone(40)
    assert 0.04 - 4 * found["standard_error"] < found["noise_alone"] < 0.05 + 4 * found["standard_error"]
    assert found["longest_steps"] < 0.05
    assert found["standard_error"] < 0.01 / 2


def test_the_same_seed_gives_the_same_traffic() -> None:
    first, again, other = (Spam(honest=1_000, rate=0.1, seed=seed).noise_alone(10) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.slow
def test_a_report_has_every_attack_at_every_share() -> None:
    attacks = (NAMED["replay"], Attack("none of it", NAMED["replay"].forge, stoppable=False))
    report = Spam(
        honest=1_000,
        updates=300,
        instances=3,
        attackers=(0.1, 0.3),
        sizes=(40,),
        attacks=attacks,
        traffic=({"merge": 0.5},),
    ).report()
    assert [(row["attackers"], row["attack"]) for row in report["attacks"]] == [
        (share, attack.name) for share in (0.1, 0.3) for attack in attacks
    ]
    assert report["traffic"][0]["merge"] == 0.5
    assert all(row["attackers_rejected"] > 0.9 for row in report["attacks"])  # a replay has no noise
    assert len(report["findings"]) == 3


@pytest.mark.slow
def test_the_digits_are_within_range_and_good_weights_work() -> None:
    problem = digits(4)
    assert problem.features.shape[1:] == (10, 64)
    assert 0 <= problem.features.min() <= problem.features.max() == 1
    assert problem.instances == 4
    assert problem.accuracy(problem.good) > 0.9
    for harm in problem.harms.values():
        assert problem.accuracy(problem.good + 100 * harm) < 0.3
        assert np.mean(harm**2) == pytest.approx(1, abs=0.06)  # some pixels are always dark


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="rate"):
        Spam(rate=0.0)
    with pytest.raises(ConfigError, match="attackers"):
        Spam(attackers=(0.1, 1.0))
    with pytest.raises(ConfigError, match="honest"):
        Spam(honest=0)
    with pytest.raises(ConfigError, match="instances = 1"):
        Spam(instances=1)
    with pytest.raises(ConfigError, match="sizes"):
        Spam(sizes=(5, 0))
    with pytest.raises(ConfigError, match="attackers"):
        Study(problem=small(), attackers=0.0, updates=5)
