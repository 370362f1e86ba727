"""What people try on a model succeeds where nothing hides anybody, and hardly where something does."""

import numpy as np
import pytest

from incrowd.audit.membership import ClientPopulation, Shadows, _likelihood_ratio, membership
from incrowd.errors import ConfigError
from incrowd.runs.config import Config
from incrowd.runs.settings import parse, tables
from incrowd.runs.work import ClientWork, assemble

pytestmark = pytest.mark.usefixtures("one_thread")


def federation(*overrides: str) -> ClientWork:
    config = parse(tables(None, overrides=["data.clients=30", "privacy.rounds=8", *overrides], data=None))
    assert isinstance(config, Config)
    return assemble(config)


@pytest.mark.slow
def test_who_is_in_is_told_without_noise_and_hardly_with_it() -> None:
    found = membership(ClientPopulation(work=federation("privacy.epsilon=0.2")), models=20, seed=1)
    private, plain = found[:3], found[3:]
    assert [one.claimed for one in private] == [pytest.approx(0.2, abs=1e-3)] * 3
    assert [one.claimed for one in plain] == [None] * 3
    assert all(one.trials == 600 and one.lower_bound is None for one in found)
    assert max(one.auc or 0 for one in plain) > 0.6
    for one in private:
        assert one.auc == pytest.approx(0.5, abs=0.11)  # 600 coins err by .02
        assert one.holds


def test_the_ratio_knows_those_whom_others_give_away() -> None:
    generator = np.random.default_rng(0)
    inside = generator.random((40, 25)) < 0.5
    confidence = generator.normal(size=(40, 25)) + 30 * generator.random(25) + 6.0 * inside
    scores = _likelihood_ratio(Shadows(inside=inside, confidence=confidence, right=confidence))
    assert scores[inside].min() > scores[~inside].max()
    nothing = _likelihood_ratio(Shadows(inside=inside, confidence=confidence - 6.0 * inside, right=confidence))
    assert abs(float(((nothing > 0) == inside).mean()) - 0.5) < 0.1


@pytest.mark.slow
def test_only_public_data_with_classes_are_looked_at() -> None:
    work = federation("data.public=false", "data.identity='ward'", "run.randomness=seeded", "run.seed=1")
    with pytest.raises(ConfigError, match="public"):
        membership(ClientPopulation(work=work), models=2, seed=0)
