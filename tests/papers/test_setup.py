import pytest

from incrowd import ServerOptimizer
from incrowd.data import Split
from incrowd.learning.features import OrientedEnergies, UnitNorm
from incrowd.privacy.mechanism.clipping import NormalisedClip
from incrowd.privacy.plan.sampling import Everyone, Poisson
from papers.geyer.setup import Setup

SERVER = ServerOptimizer()


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
