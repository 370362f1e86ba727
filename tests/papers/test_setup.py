import numpy as np
import pytest

from incrowd import ServerOptimizer
from incrowd.data import Split
from incrowd.errors import ConfigError
from incrowd.learning.features import OrientedEnergies, UnitNorm
from incrowd.privacy.mechanism.clipping import NormalisedClip
from incrowd.privacy.plan.sampling import Everyone, Poisson
from papers.geyer.setup import Leading, Setup, softmax_regression

SERVER = ServerOptimizer()


def test_the_first_features_at_norm_one() -> None:
    values = np.array([[3.0, 4.0, 12.0], [0.0, 0.0, 5.0]], np.float32)
    np.testing.assert_allclose(Leading(dimensions=2)(values), [[0.6, 0.8], [0.0, 0.0]], rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(Leading(dimensions=3)(values), axis=1), 1, rtol=1e-5)


def test_the_first_of_many_normalised_features_are_those_of_few_normalised_ones() -> None:
    values = np.random.default_rng(1).normal(size=(5, 7)).astype(np.float32)  # any numbers
    many = Leading(dimensions=6)(values)
    np.testing.assert_allclose(Leading(dimensions=3)(many), Leading(dimensions=3)(values), rtol=1e-4)


def test_more_dimensions_than_there_are_features_are_refused() -> None:
    with pytest.raises(ConfigError, match="dimensions = 4: give at most 3"):
        Leading(dimensions=4)(np.ones((1, 3), np.float32))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rounds": 0}, "rounds = 0"),
        ({"share": 0.0}, "share = 0.0"),
        ({"share": 1.1}, "share = 1.1"),
        ({"init_scale": -1.0}, "init_scale = -1.0"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Setup(**({"rounds": 1, "server": SERVER} | wrong))  # type: ignore[arg-type]  # by name


def test_everyone_or_a_poisson_share() -> None:
    everyone = Setup(rounds=3, server=SERVER).plan(50)
    assert everyone.sampling is Everyone
    assert everyone.schedule.communications == 150
    assert isinstance(everyone.clip, NormalisedClip)
    some = Setup(rounds=3, server=SERVER, share=0.1).plan(50)
    assert some.sampling is Poisson
    assert some.schedule.communications == pytest.approx(15)


def test_clients_and_server_see_the_same_features(split: Split) -> None:
    setup = Setup(rounds=1, server=SERVER, features=OrientedEnergies(), dimensions=50)
    seen = setup.prepared(split)
    assert seen.test is not None
    assert seen.train.shape == seen.test.shape == (50,)
    assert seen.train.labels is split.train.labels
    all_of_them = Setup(rounds=1, server=SERVER, features=UnitNorm()).prepared(split)
    assert all_of_them.train.shape == (784,)


def test_without_features_examples_stay_as_they_are(split: Split) -> None:
    seen = Setup(rounds=1, server=SERVER).prepared(Split(name="no test", train=split.train))
    assert seen.train is split.train
    assert seen.test is None


def test_the_linear_model_has_no_biases() -> None:
    assert softmax_regression(7, 3).size == 21
