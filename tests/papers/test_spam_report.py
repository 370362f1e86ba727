"""The spam experiment on little traffic."""

import math

import pytest

from incrowd import SeededRandomness
from incrowd.drawdiscard import LOGISTIC, Glm
from incrowd.privacy.mechanism import Mechanism
from papers.ddml.attacks import ATTACKS
from papers.ddml.spam_study import TESTS, Problem, Study


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
