"""The gradients of a few records side by side: the same as one by one, and whoever is beside changes no bit."""

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from incrowd._random import SeededRandomness
from incrowd.data.inputs import Inputs
from incrowd.errors import ConfigError
from incrowd.learning import CROSS_ENTROPY, SQUARED, Execution, Model
from incrowd.learning.compiling.worth import compiler_there
from incrowd.learning.gradients import side_by_side, ways
from incrowd.learning.gradients.one_by_one import OneByOne
from incrowd.learning.gradients.side_by_side import ByParameter, SideBySide
from incrowd.learning.gradients.sums import RecordGradients, _ByTorch, _InLoops
from incrowd.learning.inputs import noise
from incrowd.learning.record_engine import BatchedRecords
from incrowd.learning.records import Records
from incrowd.learning.trial import within_rounding
from incrowd.settings.descent import Descent
from tests.learning.records import one_of
from tests.learning.test_records import training
from tests.reference import one_record

RANDOMNESS = SeededRandomness(seed=5)
WIDTH, CLASSES = 32, 16  # whole registers
DESCENT = Descent(learning_rate=0.3)


def records(count: int = 90) -> Records:
    generator = np.random.default_rng(3)
    features = torch.from_numpy(generator.normal(size=(count, WIDTH)).astype(np.float32))
    return Records(features=features, labels=torch.from_numpy(generator.integers(0, CLASSES, count)))


def normed() -> Model:
    return Model(nn.Sequential(nn.Linear(WIDTH, 16), nn.LayerNorm(16), nn.Linear(16, CLASSES)), fresh=True)


def summed(engine: BatchedRecords, **changes: float) -> RecordGradients:
    return engine._ways.gradients(engine.model.initial(RANDOMNESS), training(physical_batch=40, **changes))


@pytest.mark.slow
def test_compiled_they_are_those_of_the_slow_twin_and_the_same_in_every_place() -> None:
    if not compiler_there():
        why = "there is no C++ compiler: apt-get install g++"
        (pytest.fail if os.environ.get("INCROWD_ALL_TESTS") else pytest.skip)(why)
    model, held, settings = normed(), records(), training(steps=3, physical_batch=40, expected_batch=8)
    engine = BatchedRecords(model, held, DESCENT, execution=Execution(compile="always"))
    gradients = engine._ways.gradients(model.initial(RANDOMNESS), settings)
    assert isinstance(gradients, SideBySide)
    assert gradients.rows == 16
    assert "_TorchDynamo" in repr(gradients.way.gradients) or hasattr(
        gradients.way.gradients, "_torchdynamo_orig_callable"
    )
    found = [one_of(gradients, held, batch, 7) for batch in ([7], [3, 7], [*range(40)], [*range(60, -1, -1)])]
    assert all(norm == found[0][0] and torch.equal(total, found[0][1]) for norm, total in found)
    weights, batches = model.initial(RANDOMNESS), RANDOMNESS.stream("batches")
    trained = engine.train(weights, settings, noise=lambda total: total, batches=batches).weights
    expected = one_record.trained(
        model,
        weights,
        held,
        settings,
        descent=DESCENT,
        loss=CROSS_ENTROPY,
        noise=lambda total: total,
        batches=RANDOMNESS.stream("batches"),
    )
    assert float((trained - expected).norm() / (expected - weights).norm()) < 1e-5


@pytest.mark.parametrize(("expected", "together"), [(1.0, 1), (7.0, 1), (8.0, 32), (100.0, 32)])
def test_so_many_are_together_as_the_plan_expects(expected: float, together: int) -> None:
    gradients = summed(BatchedRecords(normed(), records(), DESCENT), expected_batch=expected)
    assert type(gradients) is (OneByOne if together == 1 else SideBySide)
    assert gradients.rows == (40 if together == 1 else together)


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


LEFT: dict[str, tuple[Callable[[OwnLayer, Tensor], Tensor], str]] = {
    "remembers": (_remember, "it remembers something"),
    "looks at numbers": (_branch, ""),
    "does otherwise side by side": (_look_around, "not what they are one by one"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_side_by_side_goes_one_by_one_and_why_is_said(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    more, why = LEFT[name]
    engine = BatchedRecords(Model(OwnLayer(more), fresh=True), records(), DESCENT)
    for _ in range(2):
        assert type(summed(engine)) is OneByOne
    (said,) = caplog.messages
    assert "gradients of records of OwnLayer are taken one by one: " in said
    assert why in said


def test_rounding_may_take_a_few_gradients_across_a_kink_and_no_more() -> None:
    expected = torch.randn(16, 5, generator=torch.Generator().manual_seed(0))

    def apart(gradients: int, by: float) -> Tensor:
        found = expected.clone()
        found[:gradients] *= 1 + by
        return found

    assert within_rounding(apart(16, 5e-4), expected)
    assert within_rounding(apart(2, 0.05), expected)
    assert not within_rounding(apart(3, 0.05), expected)
    assert not within_rounding(apart(1, 0.2), expected)
    assert not within_rounding(apart(1, math.nan), expected)


def _differ(_module: OwnLayer, x: Tensor) -> Tensor:
    return 3 * x if torch.compiler.is_compiling() else x


@pytest.mark.slow
def test_what_is_something_else_when_it_is_compiled_is_not_compiled(caplog: pytest.LogCaptureFixture) -> None:
    if not compiler_there():
        pytest.skip("there is no C++ compiler: apt-get install g++")
    model = Model(OwnLayer(_differ), fresh=True)
    engine = BatchedRecords(model, records(), DESCENT, execution=Execution(compile="always"))
    gradients = summed(engine, expected_batch=64.0)
    assert isinstance(gradients, SideBySide)
    assert gradients.rows == 32
    assert any("not compiled: side by side they are not what they are one by one" in said for said in caplog.messages)


def _refuse(_module: OwnLayer, x: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        raise ValueError("not in here")
    return x


def test_what_cannot_be_compiled_is_side_by_side_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    if not compiler_there():
        pytest.skip("there is no C++ compiler: apt-get install g++")
    model = Model(OwnLayer(_refuse), fresh=True)
    gradients = summed(
        BatchedRecords(model, records(), DESCENT, execution=Execution(compile="always")), expected_batch=64.0
    )
    assert isinstance(gradients, SideBySide)
    assert gradients.rows == 32
    assert "gradients of records of OwnLayer are not compiled: " in caplog.text


@pytest.mark.parametrize("execution", [Execution(compile="never"), Execution(), Execution(contributions=100.0)])
def test_short_runs_are_not_compiled(execution: Execution, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "compiled", lambda _function: pytest.fail("it was compiled"))
    engine = BatchedRecords(normed(), records(), DESCENT, execution=execution)
    assert isinstance(summed(engine, expected_batch=64.0), SideBySide)


def test_a_model_is_tried_out_once_for_all_silos_and_rehearsals(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    real = side_by_side._tried

    def counted(*given: Any) -> Any:
        tried.append(1)
        return real(*given)

    monkeypatch.setattr(side_by_side, "_tried", counted)
    model = normed()
    engines = [BatchedRecords(model, records(count), DESCENT) for count in (5, 60)]
    for engine in (*engines, engines[0].rehearsal(1)):
        assert isinstance(summed(engine), SideBySide)
    assert tried == [1]
    assert isinstance(summed(BatchedRecords(normed(), records(), DESCENT)), SideBySide)
    assert tried == [1, 1]


def test_a_module_that_changes_on_the_way_is_refused_before_its_sum_is_seen() -> None:
    module = nn.Sequential(nn.Linear(WIDTH, 16), nn.LayerNorm(16), nn.Linear(16, CLASSES))
    module.register_buffer("seen", torch.zeros(1))
    gradients = summed(BatchedRecords(Model(module, fresh=True), records(), DESCENT))
    assert isinstance(gradients, SideBySide)
    gradients.begin(3)
    next(gradients.way.module.buffers()).add_(1)
    with pytest.raises(ConfigError, match="carry one record's data to the next"):
        _ = gradients.total


def test_convolutions_go_another_way_where_a_processor_rounds_rows_by_their_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, CLASSES)
    held = Records(features=torch.ones(4, 1, 8, 8), labels=torch.zeros(4, dtype=torch.int64))
    engine = BatchedRecords(Model(nn.Sequential(*layers), fresh=True), held, DESCENT)
    monkeypatch.setattr(ways, "alone", lambda *_given, **_named: False)
    assert type(summed(engine)) in (SideBySide, OneByOne)


def test_more_records_go_side_by_side_than_one_by_one_at_a_time() -> None:
    held = Records(features=torch.zeros(4, 2048), labels=torch.zeros(4, dtype=torch.int64))
    large = Model(
        nn.Sequential(nn.Linear(2048, 1024), nn.LayerNorm(1024), nn.Softplus(), nn.Linear(1024, 16)), fresh=True
    )
    trial = side_by_side._Trial(large, CROSS_ENTROPY, held, torch.device("cpu"))
    assert OneByOne(trial.twin, trial.weights, CROSS_ENTROPY, rows=4).rows < 4
    with torch.no_grad():
        assert trial.way(trial.gradients, 4).records == 4


def test_loops_do_what_torch_does() -> None:
    generator = np.random.default_rng(0)
    gradients = torch.from_numpy(generator.normal(size=(5, 3000)).astype(np.float32))
    gradients[2] = torch.nan
    factors = torch.tensor([1.0, 0.5, 0.0, 2.0, 0.0], dtype=torch.float64)
    squares, sums = torch.ones(2, 5, dtype=torch.float64), torch.ones(2, 3000, dtype=torch.float64)
    for way, square, total in zip((_ByTorch, _InLoops), squares, sums, strict=True):
        way.add_squares(gradients, square)
        way.add_rows(gradients, factors, total)
    torch.testing.assert_close(squares[0], squares[1], rtol=1e-12, atol=0, equal_nan=True)
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-12, atol=1e-12)
    assert squares[0].isnan().tolist() == [False, False, True, False, False]
    assert sums.isfinite().all()


# Attack: a record whose numbers are chosen so that those beside it are rounded in another way.


def _by_place(found: list[Tensor], _inputs: Inputs) -> None:
    for one in found:
        one[1] *= 1 + 2.0**-23


def _by_place_and_seldom(found: list[Tensor], inputs: Inputs) -> None:
    """Short gradients show it in one of fifty records: a trial of a few is passed nearly always."""
    assert isinstance(inputs, Tensor)
    if int(inputs[1, 0].view(torch.int32)) % 50 == 0:
        _by_place(found, inputs)


def _by_the_others(found: list[Tensor], inputs: Inputs) -> None:
    assert isinstance(inputs, Tensor)
    if float(inputs.abs().nan_to_num(posinf=1e30).max()) > 100:
        torch._foreach_mul_(found, 1 + 2.0**-23)


def _by_what_is_no_number(found: list[Tensor], inputs: Inputs) -> None:
    assert isinstance(inputs, Tensor)
    if bool(inputs.isnan().any()):
        torch._foreach_mul_(found, 1 + 2.0**-23)


@pytest.mark.parametrize("mood", [None, _by_place, _by_place_and_seldom, _by_the_others, _by_what_is_no_number])
def test_a_processor_that_rounds_by_place_or_by_the_others_is_found_out(
    mood: Callable[[list[Tensor], Inputs], None] | None,
) -> None:
    trial = side_by_side._Trial(normed(), CROSS_ENTROPY, records(), torch.device("cpu"))

    def moody(parameters: list[Tensor], inputs: Inputs, labels: Tensor) -> Sequence[Tensor]:
        found = list(trial.gradients(parameters, inputs, labels))
        if mood is not None:
            mood(found, inputs)
        return found

    def tried(gradients: ByParameter) -> int:
        with torch.no_grad():
            return trial.way(gradients, 8).records

    if mood is None:
        assert tried(moody) == 8  # the control
        return
    with pytest.raises(ArithmeticError, match="rounds them by their place, or by the others"):
        tried(moody)


def test_what_a_trial_finds_does_not_hang_on_what_a_program_has_drawn_before() -> None:
    """Weights of torch's global generator decided which way records went: a run taken up again could go another."""
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        found.append(side_by_side._Trial(normed(), CROSS_ENTROPY, records(), torch.device("cpu")).weights)
    assert all(map(torch.equal, *found))


def test_made_up_examples_are_of_the_kind_that_is_stored() -> None:
    stored = {
        "numbers": torch.ones(1, 40),
        "bytes": torch.ones(1, 40, dtype=torch.uint8),
        "tokens": torch.full((1, 40), 7),
        "masks": torch.ones(1, 40, dtype=torch.bool),
    }
    made = noise(stored, 5, generator=torch.Generator().manual_seed(0))
    assert isinstance(made, dict)
    assert {name: (one.shape, one.dtype) for name, one in made.items()} == {
        name: ((5, 40), one.dtype) for name, one in stored.items()
    }
    assert 0.8 < float(made["numbers"].std()) < 1.2
    assert int(made["bytes"].max()) > 200
    assert set(made["tokens"].unique().tolist()) == {0, 1}
    assert not made["masks"].any()


def test_places_are_tried_with_tokens_masks_and_labels_of_all_kinds() -> None:
    module = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(4, 3))
    tokens = Records(features=torch.zeros(3, 1, dtype=torch.int64), labels=torch.zeros(3, dtype=torch.int64))
    inputs, labels = side_by_side._Trial(
        Model(module, fresh=True), CROSS_ENTROPY, tokens, torch.device("cpu")
    )._anything(200, 0)
    assert isinstance(inputs, Tensor)
    assert set(inputs.view(-1).tolist()) == set(range(9))
    assert set(labels.tolist()) == {0, 1, 2}
    masks = Records(features=torch.zeros(3, 5, dtype=torch.bool), labels=torch.zeros(3))
    inputs, labels = side_by_side._Trial(
        Model(nn.Linear(5, 1), fresh=True), SQUARED, masks, torch.device("cpu")
    )._anything(200, 0)
    assert isinstance(inputs, Tensor)
    assert 0.3 < float(inputs.float().mean()) < 0.7
    assert len(set(labels.tolist())) == 200
