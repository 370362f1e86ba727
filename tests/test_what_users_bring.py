"""Frames, Series, words for owners and labels: in every door alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import incrowd
from incrowd.data.partition import by_column
from incrowd.errors import ConfigError, DataError

pd = pytest.importorskip("pandas")
pytestmark = pytest.mark.usefixtures("one_thread")


def frame(rows: int = 60) -> Any:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, 2)).astype(np.float32)
    answers = np.where(x[:, 0] > 0, "yes", "no")
    return pd.DataFrame(
        {"patient": [f"p{row % 12}" for row in range(rows)], "a": x[:, 0], "b": x[:, 1], "died": answers}
    )


def test_owners_and_labels_may_be_words_of_a_frame(tmp_path: Path) -> None:
    table = frame()
    data = incrowd.Clients.from_arrays(
        table[["a", "b"]],
        table.died,
        owner=table.patient,
        classes=("no", "yes"),
        test=(table[["a", "b"]], table.died),
        public=True,
    )
    assert (data.clients, data.owners[:2] if data.owners else ()) == (12, ("p0", "p1"))
    federation = incrowd.Federation(
        nn.Linear(2, 2),
        data,
        local=incrowd.Local(learning_rate=1.0),
        privacy=incrowd.Private(epsilon=50, delta=1e-3, rounds=5),
    )
    result = federation.train(tmp_path / "run", progress=False)
    assert set(result.predict(table[["a", "b"]].to_numpy())) <= {"no", "yes"}


def test_groups_and_labels_of_an_estimator_may_be_words() -> None:
    table = frame()
    for classes in (("no", "yes"), None):
        model = incrowd.PrivateClassifier(epsilon=50, rounds=3, public=True, classes=classes)
        model.fit(table[["a", "b"]], table.died, groups=table.patient)
        assert set(model.predict(table[["a", "b"]])) <= {"no", "yes"}


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT])
def test_an_owner_that_is_missing_is_refused(missing: Any) -> None:
    with pytest.raises(DataError, match="missing at example 1"):
        by_column(pd.Series(["a", missing, "b"], dtype=object))
    assert by_column(pd.Series(["a", "nan", "b"], dtype=object)).clients == 3  # the control: a name like another


def test_words_without_classes_and_classes_without_the_word_are_refused() -> None:
    table = frame()
    given: dict[str, Any] = {"owner": table.patient, "public": True}
    with pytest.raises(DataError, match="state them in order"):
        incrowd.Clients.from_arrays(table[["a", "b"]], table.died, **given)
    with pytest.raises(DataError, match="'yes': it is none of classes"):
        incrowd.Clients.from_arrays(table[["a", "b"]], table.died, classes=("no", "ja"), **given)
    with pytest.raises(ConfigError, match="once"):
        incrowd.Clients.from_arrays(table[["a", "b"]], table.died, classes=("no", "no"), **given)
