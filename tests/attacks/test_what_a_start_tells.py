"""Whether a run starts is seen by everybody: it may not tell whether anybody has an example of the last class. And what
ends a run in the middle, after rounds were paid for, tells whose turn it was.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import incrowd
from incrowd._random import Integers

PEOPLE, EACH = 30, 4
OWNERS = np.arange(PEOPLE * EACH) % PEOPLE
DRAWN = np.random.default_rng(0)
FEATURES = DRAWN.normal(size=(len(OWNERS), 6)).astype(np.float32)
TOKENS = DRAWN.integers(0, 10, (len(OWNERS), 5))


def labels(last: bool) -> Integers:
    """Of three stated classes two, or all three."""
    found = np.arange(len(OWNERS), dtype=np.int64) % 2
    found[-1] = 2 if last else 1
    return found


def data(features: Any, answers: Integers, *, classes: int, test: Any = None) -> incrowd.Clients:
    held = None if test is None else (test, answers)
    return incrowd.Clients.from_arrays(
        features, answers, owner=OWNERS, classes=classes, name=f"x{answers[-1]}", clients=PEOPLE, test=held
    )


def federation(module: nn.Module, held: incrowd.Clients) -> incrowd.Federation:
    private = incrowd.Private(epsilon=4, delta=1e-3, rounds=3, cohort=6, sampling="poisson")
    return incrowd.Federation(module, held, local=incrowd.Local(batch_size=4, learning_rate=0.1), privacy=private)


def answer(module: nn.Module, held: incrowd.Clients, folder: Path) -> str:
    """What everybody sees of a start."""
    try:
        federation(module, held).train(folder, progress=False)
    except (incrowd.ConfigError, incrowd.DataError) as error:
        return f"{type(error).__name__}: {error}"
    return "it learns"


@pytest.mark.parametrize(("outputs", "seen"), [(2, "it has 2 outputs"), (4, "it has 4 outputs"), (3, "it learns")])
def test_a_model_of_other_classes_is_refused_whoever_has_the_last(
    outputs: int, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, told = nn.Linear(6, outputs), set()
    for last in (False, True):  # two worlds, with a ledger each
        monkeypatch.setenv("INCROWD_STATE", str(tmp_path / f"state-{last}"))
        told.add(answer(module, data(FEATURES, labels(last), classes=3), tmp_path / str(last)))
    assert len(told) == 1
    assert seen in told.pop()


def embedding() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(20, 2))


@pytest.mark.parametrize("token", [10, -1, 9])
def test_a_token_that_has_no_place_is_refused_before_anything_is_paid_for(token: int, tmp_path: Path) -> None:
    tokens, folder = TOKENS.copy(), tmp_path / "run"
    tokens[77, 3] = token
    told = answer(embedding(), data(tokens, labels(last=False), classes=2), folder)
    if token == 9:  # the control: it has one
        assert told == "it learns"
    else:
        assert told.startswith("DataError: the model cannot take the whole numbers that some examples have: ")
        assert "give its Embedding a place for every token" in told
        assert not folder.exists()


def test_a_token_of_a_test_example_is_looked_at_before_too(tmp_path: Path) -> None:
    tokens = TOKENS.copy()
    tokens[0, 0] = 10
    told = answer(embedding(), data(TOKENS, labels(last=False), classes=2, test=tokens), tmp_path / "run")
    assert "the whole numbers that some test examples have" in told
    assert not (tmp_path / "run").exists()


def test_a_record_is_looked_at_too(tmp_path: Path) -> None:
    tokens, folder = TOKENS.copy(), tmp_path / "run"
    tokens[77, 3] = 10
    silos = incrowd.Private(unit="record", epsilon=4, delta=1e-3, rounds=2)
    held = incrowd.Clients.from_arrays(tokens, labels(last=False), owner=np.arange(120) % 2, classes=2, public=True)
    with pytest.raises(incrowd.DataError, match="the whole numbers that some records have"):
        incrowd.Federation(embedding(), held, privacy=silos).train(folder, progress=False)
    assert not folder.exists()
