"""Which way computes records' gradients: one that computes the same as the reference, each record alone."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from incrowd.errors import ConfigError
from incrowd.learning import CROSS_ENTROPY, Execution, Model
from incrowd.learning.compiler import compiler_there
from incrowd.learning.dpsgd import selection
from incrowd.learning.dpsgd.engine import BatchedRecords, Records
from incrowd.learning.dpsgd.gradients import PerExampleGradients, RecordGradients, VectorizedGradients
from incrowd.learning.dpsgd.selection import GradientSelection, _Trial
from incrowd.learning.trial import Unlike, check_values
from incrowd.settings import Descent
from tests.learning.dpsgd.cases import EITHER, KINDS, RANDOMNESS, layers, nothing, one_of, start, training
from tests.reference import one_record

WIDTH, CLASSES = 32, 16  # whole registers
DESCENT = Descent(learning_rate=0.3)
ALWAYS = Execution(compile="always")


def records(count: int = 90, width: int = WIDTH) -> Records:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(count, width, generator=generator)
    return Records(features=features, labels=torch.randint(0, CLASSES, (count,), generator=generator))


def normed() -> Model:
    return layers(nn.Linear(WIDTH, 16), nn.LayerNorm(16), nn.Linear(16, CLASSES))


def selected(model: Model, execution: Execution | None = None, **changes: float) -> RecordGradients:
    settings = training(physical_batch=40, **changes)
    return GradientSelection(model, CROSS_ENTROPY, records(), execution or Execution()).gradients(
        start(model), settings
    )


@pytest.mark.parametrize("kind", ["perceptron", "narrow convolutions", "attention of whole registers"])
def test_a_record_adds_the_same_bits_whoever_is_beside_it(kind: str) -> None:
    make, loss, held, _ = KINDS[kind]
    model = make()
    gradients = GradientSelection(model, loss, held, Execution()).gradients(start(model), training(physical_batch=40))
    batches = [5], [5, 3], [*range(8)], [*range(39, -1, -1)], [*range(17, 40), 5]
    found = [one_of(gradients, held, batch, 5) for batch in batches]
    assert found[0][0] > 0
    assert all(norm == found[0][0] and torch.equal(total, found[0][1]) for norm, total in found)


@pytest.mark.parametrize(("expected", "together"), [(1.0, 1), (7.0, 1), (8.0, 32), (100.0, 32)])
def test_a_plan_that_expects_few_records_takes_one_at_a_time(expected: float, together: int) -> None:
    gradients = selected(normed(), expected_batch=expected)
    assert type(gradients) is (PerExampleGradients if together == 1 else VectorizedGradients)
    assert gradients.rows == (40 if together == 1 else together)


@pytest.mark.parametrize(("middle", "together"), [(2**16, 1), (2**12, 16), (2**10, 32)])
def test_large_models_have_fewer_gradients_in_memory(middle: int, together: int) -> None:
    model = layers(nn.Linear(WIDTH, middle), nn.GELU(), nn.Linear(middle, CLASSES))
    gradients = selected(model, expected_batch=300)
    assert gradients.rows == together
    assert type(gradients) in (EITHER if together > 1 else (PerExampleGradients,))


class OwnLayer(nn.Module):
    """A module of the user's own that does something more."""

    def __init__(self, more: Callable[["OwnLayer", Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.more = nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.LayerNorm(CLASSES)), more
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.more(self, self.layer(x))


def _remember(module: OwnLayer, x: Tensor) -> Tensor:
    module.seen.append(len(x))
    return x


def _branch(_module: OwnLayer, x: Tensor) -> Tensor:
    return x if float(x.detach().abs().sum()) >= 0 else 2 * x


def _look_around(_module: OwnLayer, x: Tensor) -> Tensor:
    return x * (1 if torch._C._functorch.maybe_current_level() is None else 2)


def _differ(_module: OwnLayer, x: Tensor) -> Tensor:
    return 3 * x if torch.compiler.is_compiling() else x


def _refuse(_module: OwnLayer, x: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        raise ValueError("not in here")
    return x


LEFT: dict[str, tuple[Callable[[OwnLayer, Tensor], Tensor], str]] = {
    "remembers": (_remember, "it remembers something"),
    "looks at numbers": (_branch, ""),
    "does otherwise in vmap": (_look_around, "not what they are one by one"),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_module_that_vmap_cannot_take_goes_one_by_one_and_the_log_says_why(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    more, why = LEFT[name]
    model = Model(OwnLayer(more), fresh=True)
    for _ in range(2):
        assert type(selected(model)) is PerExampleGradients
    (said,) = caplog.messages
    assert "gradients of records of OwnLayer are not vectorized: " in said
    assert why in said


def compiler_or_skip() -> None:
    if not compiler_there():
        why = "there is no C++ compiler: apt-get install g++"
        (pytest.fail if os.environ.get("INCROWD_ALL_TESTS") else pytest.skip)(why)


@pytest.mark.slow
def test_compiled_gradients_are_those_of_the_slow_twin_and_the_same_in_every_place() -> None:
    compiler_or_skip()
    model, held, settings = normed(), records(), training(steps=3, physical_batch=40, expected_batch=8)
    engine = BatchedRecords(model, held, DESCENT, execution=ALWAYS)
    gradients = GradientSelection(model, CROSS_ENTROPY, held, ALWAYS).gradients(start(model), settings)
    assert isinstance(gradients, VectorizedGradients)
    assert gradients.rows == 16
    found = [one_of(gradients, held, batch, 7) for batch in ([7], [3, 7], [*range(40)], [*range(60, -1, -1)])]
    assert all(norm == found[0][0] and torch.equal(total, found[0][1]) for norm, total in found)
    twin: dict[str, Any] = {"descent": DESCENT, "loss": CROSS_ENTROPY, "noise": nothing}
    trained = engine.train(start(model), settings, noise=nothing, batches=RANDOMNESS.stream("b")).weights
    expected = one_record.trained(model, start(model), held, settings, batches=RANDOMNESS.stream("b"), **twin)
    assert float((trained - expected).norm() / (expected - start(model)).norm()) < 1e-5


@pytest.mark.parametrize(
    ("more", "why"), [pytest.param(_differ, "not what they are one by one", marks=pytest.mark.slow), (_refuse, "")]
)
def test_a_module_that_differs_or_fails_when_compiled_is_not_compiled(
    more: Callable[[OwnLayer, Tensor], Tensor], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    compiler_or_skip()
    gradients = selected(Model(OwnLayer(more), fresh=True), ALWAYS, expected_batch=64.0)
    assert isinstance(gradients, VectorizedGradients)
    assert gradients.rows == 32
    assert any("OwnLayer are not compiled: " in said and why in said for said in caplog.messages)


@pytest.mark.parametrize("execution", [Execution(compile="never"), Execution(), Execution(contributions=100.0)])
def test_short_runs_are_not_compiled(execution: Execution, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "compiled", lambda _function: pytest.fail("it was compiled"))
    assert isinstance(selected(normed(), execution, expected_batch=64.0), VectorizedGradients)


def test_a_model_is_tried_once_for_all_silos_and_rehearsals(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    real = GradientSelection._selected

    def counted(*given: Any) -> Any:
        tried.append(1)
        return real(*given)

    monkeypatch.setattr(GradientSelection, "_selected", counted)
    model, settings = normed(), training(steps=1, physical_batch=40)
    engines = [BatchedRecords(model, records(count), DESCENT) for count in (5, 60)]
    for engine in (*engines, engines[0].rehearsal(1)):
        for expected in (16.0, 21.0):  # of silos of several sizes
            plan = replace(settings, expected_batch=expected)
            engine.train(start(model), plan, noise=nothing, batches=RANDOMNESS.stream("b"))
    assert tried == [1]
    selected(normed())
    assert tried == [1, 1]


class Changing(nn.Module):
    """A layer that begins to keep something of a record once it is told to."""

    now = False

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.LayerNorm(CLASSES), nn.GELU())
        self.register_buffer("kept", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if Changing.now:
            self.kept.add_(1)  # type: ignore[operator]  # a buffer is a tensor
        out: Tensor = self.layer(x)
        return out


def test_a_module_that_changes_on_the_way_ends_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = BatchedRecords(Model(Changing(), fresh=True), records(), DESCENT)
    settings = training(physical_batch=40, expected_batch=1.0)
    weights = start(engine.model)
    assert engine.train(weights, settings, noise=nothing, batches=RANDOMNESS.stream("b")).dropped == 0
    monkeypatch.setattr(Changing, "now", True)
    with pytest.raises(ConfigError, match="carry one record's data to the next"):
        engine.train(weights, settings, noise=nothing, batches=RANDOMNESS.stream("b"))


def test_rounding_may_take_a_few_gradients_across_a_kink_and_no_more() -> None:
    expected = torch.randn(16, 5, generator=torch.Generator().manual_seed(0))

    def apart(gradients: int, by: float) -> Tensor:
        found = expected.clone()
        found[:gradients] *= 1 + by
        return found

    for gradients, by in ((16, 5e-4), (2, 0.05)):
        check_values(apart(gradients, by), expected)
    for gradients, by in ((3, 0.05), (1, 0.2), (1, math.nan)):
        with pytest.raises(Unlike, match="not what they are one by one"):
            check_values(apart(gradients, by), expected)


# Attack: a record whose numbers are chosen so that those beside it are rounded in another way.

Mood = Callable[[list[Tensor], Tensor], None]


def _by_place(found: list[Tensor], _inputs: Tensor) -> None:
    for one in found:
        one[1] *= 1 + 2.0**-23


def _by_place_and_seldom(found: list[Tensor], inputs: Tensor) -> None:
    """Short gradients show it in one of some fifty records: a trial of a few is passed nearly always."""
    if int(inputs[1, 0].view(torch.int32)) % 53 == 0:
        _by_place(found, inputs)


def _by_the_others(found: list[Tensor], inputs: Tensor) -> None:
    if float(inputs.abs().nan_to_num(posinf=1e30).max()) > 100:
        torch._foreach_mul_(found, 1 + 2.0**-23)


def _by_numbers_that_are_none(found: list[Tensor], inputs: Tensor) -> None:
    if bool(inputs.isnan().any()):
        torch._foreach_mul_(found, 1 + 2.0**-23)


@pytest.mark.parametrize("mood", [None, _by_place, _by_place_and_seldom, _by_the_others, _by_numbers_that_are_none])
def test_a_processor_that_rounds_by_place_or_by_the_others_is_found_out(mood: Mood | None) -> None:
    trial = _Trial(normed(), CROSS_ENTROPY, records(), torch.device("cpu"))
    function, module = trial.vectorized()

    def moody(parameters: list[Tensor], inputs: Any, labels: Tensor) -> list[Tensor]:
        found = list(function(parameters, inputs, labels))
        if mood is not None:
            mood(found, inputs)
        return found

    def make(weights: Any) -> VectorizedGradients:
        return VectorizedGradients(moody, module, weights, rows=8)

    if mood is None:
        trial.check(make)  # the control
        return
    with pytest.raises(Unlike, match="rounds them by their place, by the others, or"):
        trial.check(make)


def test_a_trial_does_not_depend_on_torchs_global_generator() -> None:
    """Weights of the global generator decided which way records went: a run taken up again could go another."""
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        found.append(_Trial(normed(), CROSS_ENTROPY, records(), torch.device("cpu")).weights)
    assert all(map(torch.equal, *found))
