from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from incrowd.learning import Model, mlp
from incrowd.learning.execution import Execution
from incrowd.learning.gradients.ghost import Ghost
from incrowd.learning.gradients.one_by_one import OneByOne
from incrowd.learning.gradients.replayed import Replayed
from incrowd.learning.gradients.side_by_side import SideBySide, Way, _Trial
from incrowd.learning.gradients.sums import Formed, RecordGradients, _ByTorch
from incrowd.learning.gradients.ways import GradientWays
from incrowd.learning.losses import CROSS_ENTROPY
from incrowd.learning.program import compile_program
from incrowd.learning.records import Records
from incrowd.learning.replay import Notes, Take
from incrowd.privacy.mechanism.clipping import FixedClip
from tests.learning.cohorts import RANDOMNESS
from tests.learning.test_records import training

CPU = torch.device("cpu")
NEVER = Execution(compile="never")
SETTINGS = training(expected_batch=10.0, physical_batch=16)


def records(count: int = 40) -> Records:
    generator = np.random.default_rng(0)
    features = torch.from_numpy(generator.normal(size=(count, 12)).astype(np.float32))
    return Records(features=features, labels=torch.from_numpy(generator.integers(0, 4, count)))


def normed() -> Model:
    return Model(nn.Sequential(nn.Linear(12, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 4)), fresh=True)


MODELS: dict[str, Callable[[], Model]] = {"perceptron": lambda: mlp((12, 6, 4)), "normed": normed}


def noted(model: Model, weights: Tensor) -> Replayed:
    """A ghost where there can be one, or eight side by side, however this processor rounds."""
    held, parameters = records(), model.by_parameter(weights)
    program = compile_program(model.module, CROSS_ENTROPY, held)
    if program is not None:
        return Replayed(Ghost(program, parameters, rows=8, blockwise=True), CPU)
    trial = _Trial(model, CROSS_ENTROPY, held, CPU)
    return Replayed(SideBySide(Way(gradients=trial.gradients, module=trial.module, records=8), parameters), CPU)


@pytest.mark.parametrize("name", MODELS)
def test_blocks_add_up_what_gradients_one_by_one_do(name: str) -> None:
    model, held = MODELS[name](), records()
    weights = model.initial(RANDOMNESS)
    slow = OneByOne(model.module, model.by_parameter(weights), CROSS_ENTROPY, rows=8)
    ways: tuple[RecordGradients, ...] = noted(model, weights), slow
    for _ in range(2):  # the second sum begins anew
        for way in ways:
            way.begin(20)
        for several in (slice(0, 8), slice(20, 25)):
            found, norms = (way.norms(held.features[several], held.labels[several]) for way in ways)
            np.testing.assert_allclose(found, norms, rtol=1e-5)
            factors = torch.from_numpy(FixedClip(clip_norm=0.5).factors(norms))
            factors[2] = 0
            for way in ways:
                way.add(factors)
        torch.testing.assert_close(ways[0].total, ways[1].total, rtol=1e-5, atol=1e-6)
        weights.mul_(0.5)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_left_out_may_hold_anything_and_what_fills_up_adds_nothing(name: str) -> None:
    model, held = MODELS[name](), records()
    block = noted(model, model.initial(RANDOMNESS))
    features = held.features[:5].clone()
    features[3] = torch.nan
    factors, totals = torch.tensor([1.0, 0.5, 2.0, 0.0, 1.0], dtype=torch.float64), []
    for chosen in ([0, 1, 2, 3, 4], [0, 1, 2, 4]):
        block.begin(5)
        norms = block.norms(features[chosen], held.labels[:5][chosen])
        assert np.isfinite(norms).tolist() == [number != 3 for number in chosen]
        block.add(factors[chosen])
        totals.append(block.total.clone())
    assert totals[0].isfinite().all()
    torch.testing.assert_close(totals[0], totals[1], rtol=1e-12, atol=1e-12)


def test_what_was_noted_is_kept_while_the_weights_stay_in_their_place() -> None:
    model = mlp((12, 6, 4))
    weights, ways = model.initial(RANDOMNESS), GradientWays(model, CROSS_ENTROPY, records(), NEVER)
    first = ways._there(weights, SETTINGS)
    weights.mul_(2)
    assert ways._there(weights, SETTINGS) is first
    assert ways._there(weights, training(expected_batch=5.0, physical_batch=16)) is not first
    assert ways._there(weights.clone(), SETTINGS) is not first


def test_nothing_is_added_before_anything_was_measured() -> None:
    model = mlp((12, 6, 4))
    block = noted(model, model.initial(RANDOMNESS))
    block.begin(1)
    with pytest.raises(AssertionError, match="before the first records"):
        block.add(torch.ones(1, dtype=torch.float64))


def test_gradients_stay_in_their_memory_where_a_device_adds_them_by_itself() -> None:
    formed = Formed([3], CPU)
    formed._here, formed._work = False, _ByTorch
    factors = torch.tensor([1.0, 0.0], dtype=torch.float64)
    formed.squares([torch.tensor([[1.0, 2.0, 3.0], [torch.inf, 1.0, 1.0]])])
    for times in (1, 2):
        formed.add(factors)
        assert formed.total.tolist() == [times, 2 * times, 3 * times]


def test_of_several_engines_the_last_one_is_noted_alone() -> None:
    model = mlp((12, 6, 4))
    weights = model.initial(RANDOMNESS)
    first, second = (GradientWays(model, CROSS_ENTROPY, records(), NEVER) for _ in range(2))
    noted_first = first._there(weights, SETTINGS)
    second._there(weights, SETTINGS)
    assert first._replayed is None
    assert second._replayed is not None
    assert first._there(weights, SETTINGS) is not noted_first
    assert second._replayed is None


def test_steps_that_follow_each_other_are_noted_together_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_the_second(step: Take) -> Take:
        if step is one:
            raise RuntimeError("out of memory")
        return step

    taken: list[int] = []
    one, two = (lambda number=number: taken.append(number) for number in (1, 2))
    notes: Any = Notes(CPU)
    notes._memory = "there is some"
    monkeypatch.setattr(notes, "_graph", only_the_second)
    assert notes.noted_together(one, two) == (one, two)
    monkeypatch.setattr(notes, "_graph", lambda _step: two)
    assert notes.noted_together(one, one) == (two, two)


def test_records_one_by_one_are_not_noted() -> None:
    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.seen = nn.Linear(12, 4), 0

        def forward(self, x: Tensor) -> Tensor:
            self.seen += 1
            found: Tensor = self.layer(x)
            return found

    model = Model(Remembering(), fresh=True)
    weights, ways = model.initial(RANDOMNESS), GradientWays(model, CROSS_ENTROPY, records(), NEVER)
    assert not isinstance(ways._there(weights, SETTINGS), Replayed)
