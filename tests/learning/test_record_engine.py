from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from incrowd._random import SeededRandomness
from incrowd.errors import DataError
from incrowd.learning import CROSS_ENTROPY, LOGISTIC, POISSON, SQUARED, Loss, Model, linear, mlp, small_cnn
from incrowd.learning.gradients.ghost import Ghost
from incrowd.learning.gradients.one_by_one import OneByOne
from incrowd.learning.gradients.pictures import Pictured, parts_of
from incrowd.learning.gradients.side_by_side import SideBySide
from incrowd.learning.paths.fast.layers import layers_of
from incrowd.learning.program import compile_program
from incrowd.learning.record_engine import BatchedRecords
from incrowd.learning.records import Records
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.settings.descent import Descent
from tests.learning.record_models import FEATURES, Branching, Recurrent, Sharing, attention, layers, narrow_convolutions
from tests.learning.records import one_of
from tests.learning.test_records import training
from tests.reference import one_record

RANDOMNESS = SeededRandomness(seed=9)
PLAIN = Descent(learning_rate=0.3)


def rows(count: int = 90, *, classes: int = 4, shape: tuple[int, ...] = (FEATURES,), whole: bool = False) -> Records:
    generator = np.random.default_rng(3)
    labels = torch.from_numpy(generator.integers(0, classes, count))
    if whole:
        features = torch.from_numpy(generator.integers(0, 256, (count, *shape), dtype=np.uint8))
        return Records(features=features, labels=labels, scale=1 / 255, offset=-0.25)
    return Records(features=torch.from_numpy(generator.normal(size=(count, *shape)).astype(np.float32)), labels=labels)


def nothing(total: Tensor) -> Tensor:
    """Noise of zeros."""
    return total


def tilted(total: Tensor) -> Tensor:
    """The same noise at each step: any mistake in how noise enters shows."""
    return total + torch.linspace(-1, 1, len(total), dtype=torch.float64)


class Seen:
    """Noise of zeros that remembers the sums."""

    def __init__(self) -> None:
        self.totals: list[Tensor] = []

    def __call__(self, total: Tensor) -> Tensor:
        self.totals.append(total.clone())
        return total


def tokens(count: int = 40) -> Records:
    generator = np.random.default_rng(4)
    return Records(
        features=torch.from_numpy(generator.integers(0, 5, (count, 6))),
        labels=torch.from_numpy(generator.integers(0, 4, count)),
    )


def of_registers(kind: type[nn.GRU | nn.LSTM | nn.RNN]) -> Callable[[], Model]:
    """Sizes at which no number of one record shares a register with another's."""
    return lambda: Model(Recurrent(kind, inputs=16, hidden=32), fresh=True)


KINDS: dict[str, tuple[Callable[[], Model], Loss, Records]] = {
    "linear": (lambda: linear(FEATURES, 4), CROSS_ENTROPY, rows()),
    "linear without bias": (lambda: linear(FEATURES, 4, bias=False), CROSS_ENTROPY, rows()),
    "perceptron": (lambda: mlp((FEATURES, 70, 9, 4)), CROSS_ENTROPY, rows()),
    "perceptron without biases": (lambda: mlp((FEATURES, 7, 4), bias=False), CROSS_ENTROPY, rows()),
    "bytes": (lambda: mlp((FEATURES, 9, 4)), CROSS_ENTROPY, rows(whole=True)),
    "images": (lambda: mlp((FEATURES, 9, 4)), CROSS_ENTROPY, rows(shape=(3, 4), whole=True)),
    "logistic": (lambda: linear(FEATURES, 1), LOGISTIC, rows(classes=2)),
    "least squares": (lambda: linear(FEATURES, 1), SQUARED, rows()),
    "counts": (lambda: linear(FEATURES, 1), POISSON, rows()),
    "hyperbolic": (
        lambda: layers(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 4)),
        CROSS_ENTROPY,
        rows(),
    ),
    "two in a row": (lambda: layers(nn.Linear(FEATURES, 6), nn.Linear(6, 4, bias=False)), CROSS_ENTROPY, rows()),
    "normalised": (
        lambda: layers(nn.Linear(FEATURES, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 4)),
        CROSS_ENTROPY,
        rows(),
    ),
    "shared path": (lambda: Model(Sharing(), fresh=True), CROSS_ENTROPY, rows()),
    "a loss of one's own": (
        lambda: mlp((FEATURES, 5, 4)),
        Loss(name="smoothed", value=partial(nn.functional.cross_entropy, label_smoothing=0.1)),
        rows(),
    ),
    "branching": (lambda: Model(Branching(), fresh=True), CROSS_ENTROPY, rows()),
    "convolutions": (lambda: small_cnn(side=16, outputs=4), CROSS_ENTROPY, rows(12, shape=(16, 16), whole=True)),
    "narrow convolutions": (narrow_convolutions, CROSS_ENTROPY, rows(40, shape=(2, 9, 8))),
    "normalised convolutions": (
        lambda: layers(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(168, 4)),
        CROSS_ENTROPY,
        rows(40, shape=(2, 9, 8)),
    ),
    "normalised afterwards": (
        lambda: layers(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(168, 4)),
        CROSS_ENTROPY,
        rows(40, shape=(2, 9, 8)),
    ),
    "recurrent": (lambda: Model(Recurrent(), fresh=True), CROSS_ENTROPY, tokens()),
    "recurrent of whole registers": (of_registers(nn.RNN), CROSS_ENTROPY, tokens()),
    "gated, of whole registers": (of_registers(nn.GRU), CROSS_ENTROPY, tokens()),
    "long short, of whole registers": (of_registers(nn.LSTM), CROSS_ENTROPY, tokens()),
    "attention": (lambda: attention(8, 4), CROSS_ENTROPY, tokens()),
    "attention of whole registers": (lambda: attention(32, 16), CROSS_ENTROPY, tokens()),
}
EITHER = (SideBySide, OneByOne)  # where numbers of several records meet in a register, a processor may round by place
WAYS: dict[str, tuple[type, ...]] = {
    "normalised": EITHER,
    "shared path": EITHER,
    "a loss of one's own": EITHER,
    "branching": (OneByOne,),
    "convolutions": (Pictured,),
    "narrow convolutions": (Pictured,),
    "normalised convolutions": (Pictured,),
    "normalised afterwards": (Pictured,),
    "recurrent": EITHER,
    "attention": EITHER,
    "recurrent of whole registers": (SideBySide,),
    "gated, of whole registers": (SideBySide,),
    "long short, of whole registers": (SideBySide,),
    "attention of whole registers": (SideBySide,),
}


def start(model: Model) -> Tensor:
    return model.initial(RANDOMNESS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_learns_as_the_slow_twin_does(kind: str) -> None:
    make, loss, records = KINDS[kind]
    several = (SideBySide,), EITHER
    model, settings = make(), training(steps=4, clip_norm=0.5, physical_batch=40 if WAYS.get(kind) in several else 7)
    engine = BatchedRecords(model, records, PLAIN, loss=loss)
    weights = start(model)
    assert type(engine._ways.gradients(weights, settings)) in WAYS.get(kind, (Ghost,))
    found = engine.train(weights, settings, noise=tilted, batches=RANDOMNESS.stream("batches"))
    expected = one_record.trained(
        model, weights, records, settings, descent=PLAIN, loss=loss, noise=tilted, batches=RANDOMNESS.stream("batches")
    )
    moved = expected - weights
    assert float((found.weights - expected).norm() / moved.norm()) < 1e-5
    assert found.dropped == 0


def test_weights_decay_without_momentum_as_torchs_sgd_has_it() -> None:
    descent = Descent(learning_rate=0.3, weight_decay=0.1)
    model, records, settings = mlp((FEATURES, 6, 4)), rows(), training(steps=5)
    weights = start(model)
    found = BatchedRecords(model, records, descent).train(
        weights, settings, noise=tilted, batches=RANDOMNESS.stream("batches")
    )
    expected = one_record.trained(
        model,
        weights,
        records,
        settings,
        descent=descent,
        loss=CROSS_ENTROPY,
        noise=tilted,
        batches=RANDOMNESS.stream("batches"),
    )
    assert float((found.weights - expected).norm() / (expected - weights).norm()) < 1e-5


@pytest.mark.parametrize("kind", ["perceptron", "normalised"])
def test_the_physical_batch_changes_nothing_but_rounding(kind: str) -> None:
    make, loss, records = KINDS[kind]
    model = make()
    engine, weights = BatchedRecords(model, records, PLAIN, loss=loss), start(model)
    found = [
        engine.train(weights, training(physical_batch=size), noise=tilted, batches=RANDOMNESS.stream("batches")).weights
        for size in (1, 5, 22, 1000)
    ]
    for one, other in pairwise(found):
        assert float((one - other).norm()) < 1e-5 * float((one - weights).norm())


@pytest.mark.parametrize("kind", ["perceptron", "normalised"])
def test_never_more_records_at_once_than_a_physical_batch(kind: str) -> None:
    make, loss, records = KINDS[kind]
    model = make()
    seen: list[int] = []

    def value(outputs: Tensor, labels: Tensor) -> Tensor:
        return loss.value(outputs, labels)

    def target(labels: Tensor, outputs: int) -> Tensor:
        seen.append(len(labels))
        assert loss.canonical is not None
        return loss.canonical.target(labels, outputs)

    assert loss.canonical is not None
    watched = Loss(name="watched", value=value, canonical=type(loss.canonical)(mean=loss.canonical.mean, target=target))
    engine = BatchedRecords(model, records, PLAIN, loss=watched)
    settings = training(steps=1, sampling_prob=1, physical_batch=20)
    engine.train(start(model), settings, noise=nothing, batches=RANDOMNESS.stream("batches"))
    gradients = engine._ways.gradients(start(model), training(physical_batch=20))
    assert gradients.rows <= 20
    assert seen == ([20, 20, 20, 20, 10] if kind == "perceptron" else [])


@pytest.mark.parametrize(("middle", "together"), [(2**17, 1), (2**12, 32), (2**14, 8)])
def test_large_models_have_fewer_gradients_in_memory(middle: int, together: int) -> None:
    model = layers(nn.Linear(FEATURES, middle), nn.GELU(), nn.Linear(middle, 4))
    settings = training(physical_batch=256, expected_batch=300)
    gradients = BatchedRecords(model, rows(), PLAIN)._ways.gradients(model.weights, settings)
    assert gradients.rows == together
    assert type(gradients) in (EITHER if together > 1 else (OneByOne,))


@pytest.mark.parametrize("kind", ["narrow convolutions", "normalised convolutions", "attention of whole registers"])
def test_what_a_record_adds_is_the_same_whoever_is_beside_it(kind: str) -> None:
    make, loss, records = KINDS[kind]
    model = make()
    gradients = BatchedRecords(model, records, PLAIN, loss=loss)._ways.gradients(
        start(model), training(physical_batch=40)
    )
    batches = [5], [5, 3], [*range(8)], [*range(39, -1, -1)], [*range(17, 40), 5]
    found = [one_of(gradients, records, batch, 5) for batch in batches]
    assert found[0][0] > 0
    assert all(norm == found[0][0] and torch.equal(total, found[0][1]) for norm, total in found)


def spoilt(records: Records, *bad: float) -> Records:
    features = records.features.clone()
    for number, value in enumerate(bad):
        features.view(len(features), -1)[2 + number, number] = value
    return Records(features=features, labels=records.labels)


@pytest.mark.parametrize(
    "kind", ["perceptron", "linear", "normalised", "narrow convolutions", "normalised convolutions"]
)
def test_a_record_that_is_not_finite_is_a_zero_contribution_and_counted(kind: str) -> None:
    make, loss, records = KINDS[kind]
    model, weights = make(), start(make())
    bad = spoilt(records, np.nan, np.inf, -np.inf)
    without = Records(
        features=torch.cat([records.features[:2], records.features[5:]]),
        labels=torch.cat([records.labels[:2], records.labels[5:]]),
    )
    settings = training(steps=1, sampling_prob=1)
    found, expected = Seen(), Seen()
    one = BatchedRecords(model, bad, PLAIN, loss=loss).train(
        weights, settings, noise=found, batches=RANDOMNESS.stream("batches")
    )
    BatchedRecords(model, without, PLAIN, loss=loss).train(
        weights, settings, noise=expected, batches=RANDOMNESS.stream("batches")
    )
    assert one.dropped == 3
    assert one.weights.isfinite().all()
    torch.testing.assert_close(found.totals[0], expected.totals[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["perceptron", "normalised"])
@pytest.mark.parametrize("value", [np.nan, 1e38])
def test_when_no_record_is_usable_the_sum_is_zero(kind: str, value: float) -> None:
    make, loss, records = KINDS[kind]
    hopeless = Records(features=torch.full_like(records.features, value), labels=records.labels)
    model, seen = make(), Seen()
    found = BatchedRecords(model, hopeless, PLAIN, loss=loss).train(
        1e6 * start(model), training(steps=1, sampling_prob=1), noise=seen, batches=RANDOMNESS.stream("batches")
    )
    assert found.dropped == len(records)
    assert not seen.totals[0].any()


@pytest.mark.parametrize("kind", ["perceptron", "normalised"])
def test_an_empty_batch_is_a_step_of_noise(kind: str) -> None:
    make, loss, records = KINDS[kind]
    model, seen = make(), Seen()
    settings = training(steps=5, sampling_prob=1e-9)
    weights = start(model)
    engine = BatchedRecords(model, records, PLAIN, loss=loss)
    engine.train(weights, settings, noise=seen, batches=RANDOMNESS.stream("batches"))
    assert len(seen.totals) == 5
    assert not torch.cat(seen.totals).any()
    moved = engine.train(weights, settings, noise=tilted, batches=RANDOMNESS.stream("batches")).weights - weights
    expected = -5 * 0.3 / 8 * torch.linspace(-1, 1, len(weights))
    torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-5)


def test_without_records_there_is_noise_alone() -> None:
    none = Records(features=torch.zeros(0, FEATURES), labels=torch.zeros(0, dtype=torch.int64))
    model, seen = mlp((FEATURES, 5, 4)), Seen()
    BatchedRecords(model, none, PLAIN).train(
        start(model), training(sampling_prob=1), noise=seen, batches=RANDOMNESS.stream("batches")
    )
    assert [bool(total.any()) for total in seen.totals] == [False] * 3


def test_sums_are_exact_where_float32_is_not() -> None:
    # A large contribution, many tiny ones, and the large one taken away again: in float32 the tiny ones would vanish.
    model = linear(1, 1, bias=False)
    features = torch.ones(20_002, 1)
    labels = torch.cat([torch.tensor([-1e4]), torch.full((20_000,), -1e-4), torch.tensor([1e4])])
    records, seen = Records(features=features, labels=labels), Seen()
    BatchedRecords(model, records, PLAIN, loss=SQUARED).train(
        torch.zeros(1), training(steps=1, sampling_prob=1, clip_norm=1e5), noise=seen, batches=RANDOMNESS.stream("b")
    )
    assert seen.totals[0].item() == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("records", [128, 129])
@pytest.mark.parametrize("together", [256, 40])
def test_few_gradients_are_added_in_float32_and_many_in_float64(records: int, together: int) -> None:
    model, data, seen = mlp((FEATURES, 30, 4)), rows(records), Seen()
    settings = training(steps=1, sampling_prob=1, physical_batch=together, clip_norm=0.01)
    BatchedRecords(model, data, PLAIN).train(start(model), settings, noise=seen, batches=RANDOMNESS.stream("b"))
    (total,) = seen.totals
    assert total.dtype == (torch.float32 if records == 128 else torch.float64)
    exact = Seen()
    weights, still = start(model), Descent(learning_rate=1e-30)
    one_record.trained(
        model,
        weights,
        data,
        settings,
        descent=still,
        loss=CROSS_ENTROPY,
        noise=exact,
        batches=RANDOMNESS.stream("b"),
    )
    apart = float((total - exact.totals[0]).norm())
    assert apart < (settings.sensitivity - settings.clip_norm) / 2


def test_what_float32_rounds_badly_becomes_zero_and_never_longer() -> None:
    # Inputs of 1e30 need factors that float32 holds with few digits, or none.
    model = linear(2, 1, bias=False)
    data = Records(features=torch.full((3, 2), 1e30), labels=torch.tensor([0.0, 1.0, 2.0]))
    settings, seen = training(steps=1, sampling_prob=1, clip_norm=1e-12), Seen()
    BatchedRecords(model, data, PLAIN, loss=SQUARED).train(
        torch.zeros(2), settings, noise=seen, batches=RANDOMNESS.stream("b")
    )
    assert float(seen.totals[0].double().norm()) <= 3 * settings.clip_norm


def test_the_weights_given_and_the_module_stay_as_they_are() -> None:
    model = mlp((FEATURES, 5, 4))
    weights, before = start(model), model.weights
    kept = weights.clone()
    BatchedRecords(model, rows(), PLAIN).train(weights, training(), noise=tilted, batches=RANDOMNESS.stream("batches"))
    assert torch.equal(weights, kept)
    assert torch.equal(model.weights, before)


def test_what_does_not_fit_is_refused_at_once() -> None:
    with pytest.raises(DataError, match=r"cannot take records of the shape \(12,\)"):
        BatchedRecords(mlp((5, 4)), rows(), PLAIN)
    with pytest.raises(DataError, match="'cross entropy' does not fit a model with 3 outputs"):
        BatchedRecords(mlp((FEATURES, 3)), rows(), PLAIN)


def test_both_ways_measure_alike() -> None:
    model, records = mlp((FEATURES, 8, 4)), rows()
    program = compile_program(model.module, CROSS_ENTROPY, records)
    assert program is not None
    parameters = model.by_parameter(start(model))
    ghost = Ghost(program, parameters, rows=100)
    other = OneByOne(model.module, parameters, CROSS_ENTROPY, rows=100)
    one, two = (way.norms(records.features, records.labels) for way in (ghost, other))
    np.testing.assert_allclose(one, two, rtol=1e-5)
    factors = torch.from_numpy(FixedClip(clip_norm=0.5).factors(one))
    factors[3] = 0
    totals = []
    for anew in (True, False, True):
        for way in (ghost, other):
            if anew:
                way.begin(90)
            way.norms(records.features, records.labels)
            way.add(factors)
        torch.testing.assert_close(ghost.total.double(), other.total, rtol=1e-5, atol=1e-6)
        totals.append(ghost.total.clone())
    torch.testing.assert_close(totals[1], 2 * totals[0])
    assert torch.equal(totals[2], totals[0])


def test_above_convolutions_only_simple_layers_have_gradients_of_their_own() -> None:
    data = rows(4, shape=(1, 6, 6))
    for between, simple in ((nn.Tanh(), True), (nn.LayerNorm(7), False)):
        stack = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 7), between, nn.Linear(7, 4))
        found, canonical = layers_of(stack, CROSS_ENTROPY, data), CROSS_ENTROPY.canonical
        assert found is not None
        assert canonical is not None
        assert (parts_of(found, canonical) is not None) is simple
