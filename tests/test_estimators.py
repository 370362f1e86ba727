"""The estimators keep scikit-learn's rules, and of private data nothing is collected that is not stated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import r2_score
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.estimators import PrivateClassifier, PrivateRegressor

pytestmark = pytest.mark.usefixtures("one_thread")

CHECKED: dict[str, Any] = {"public": True, "epsilon": 1e4, "rounds": 10, "learning_rate": 0.5, "clip_norm": 1.0}
STATED: dict[str, Any] = {"name": "visits", "clients": 60, "ranges": (-4, 4)}
CLASSIFIER: dict[str, Any] = {**STATED, "classes": ("no", "yes")}
REGRESSOR: dict[str, Any] = {**STATED, "target_range": (-10, 10)}


@pytest.mark.filterwarnings("ignore:Skipping check check_array_api_input:sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks([PrivateClassifier(**CHECKED), PrivateRegressor(**CHECKED)])  # type: ignore[untyped-decorator]  # sklearn has no types
def test_scikit_learn_s_own_checks(estimator: Any, check: Any) -> None:
    """All of them, so no list of exceptions. One skips itself: it is for arrays of other libraries."""
    check(estimator)


def visits(seed: int = 0, count: int = 300) -> tuple[Any, Any, Any]:
    generator = np.random.default_rng(seed)
    x = generator.uniform(-3, 3, size=(count, 3))
    return x, np.where(x[:, 0] + x[:, 1] > 0, "yes", "no"), np.arange(count) % 60


def classifier(**given: Any) -> PrivateClassifier:
    return PrivateClassifier(
        **{"epsilon": 5000.0, "delta": 1e-3, "rounds": 6, "learning_rate": 0.5, "clip_norm": 0.3, **given}
    )


def regressor(**given: Any) -> PrivateRegressor:
    return PrivateRegressor(
        **{"epsilon": 5000.0, "delta": 1e-3, "rounds": 6, "learning_rate": 0.5, "clip_norm": 0.3, **given}
    )


@pytest.mark.slow
def test_private_data_are_learned_from_by_what_is_stated() -> None:
    x, y, patient = visits()
    fitted = classifier(**CLASSIFIER, rounds=20).fit(x, y, groups=patient)
    assert list(fitted.classes_) == ["no", "yes"]
    assert fitted.score(*visits(1)[:2]) > 0.8
    assert fitted.predict_proba(x).sum(axis=1) == pytest.approx(np.ones(300))
    assert np.array_equal(fitted.predict(x), fitted.classes_[fitted.predict_proba(x).argmax(1)])
    assert "SIMULATION" not in fitted.statement_
    assert fitted.result_.summary["clients"] == 60
    assert fitted.n_iter_ == 20
    with pytest.raises(BudgetExceeded):  # each fit is charged to the ledger of the data
        classifier(**CLASSIFIER).fit(x, y, groups=patient)


@pytest.mark.slow
def test_numbers_are_learned_in_their_stated_range() -> None:
    x, _, patient = visits()
    y = 2 * x[:, 0] - x[:, 1]
    fitted = regressor(**REGRESSOR, rounds=20).fit(x, y, groups=patient)
    assert r2_score(y, fitted.predict(x)) > 0.5
    assert regressor(public=True, ranges=(-4, 4), hidden=(4,)).fit(x + 1, y, groups=patient).predict(x).shape == (300,)


def test_a_module_of_one_s_own_starts_as_it_is() -> None:
    torch.manual_seed(0)
    first = nn.Linear(3, 4)
    own = nn.Sequential(first, nn.Tanh(), nn.Linear(4, 2))
    before = first.weight.clone()
    x, y, patient = visits()
    fitted = classifier(public=True, module=own, learning_rate=1e-6, rounds=1, clip_norm=1e-6)
    fitted = fitted.fit(x, y, groups=patient)
    assert torch.equal(first.weight, before)
    assert torch.allclose(fitted.result_.module.state_dict()["0.weight"], before, atol=1e-4)


def test_a_folder_keeps_the_run(tmp_path: Path) -> None:
    x, y, patient = visits()
    first = classifier(**CLASSIFIER, folder=tmp_path / "run").fit(x, y, groups=patient)
    again = clone(first).fit(x, y, groups=patient)  # it is over: nothing is spent twice
    assert np.array_equal(first.predict_proba(x), again.predict_proba(x))
    with pytest.raises(ConfigError, match=r"privacy\.rounds = 6"):
        clone(first).set_params(rounds=7).fit(x, y, groups=patient)


def test_names_of_a_frame_s_columns_are_kept() -> None:
    pandas = pytest.importorskip("pandas")
    x, y, _ = visits()
    frame = pandas.DataFrame(x, columns=["age", "weight", "height"])
    fitted = classifier(public=True, rounds=2).fit(frame, y)
    assert list(fitted.feature_names_in_) == ["age", "weight", "height"]
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame[["weight", "age", "height"]])
