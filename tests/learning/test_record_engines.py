"""What every engine for record-level training has to do, ours and Opacus' alike."""

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from incrowd._random import SeededRandomness, Stream, SystemRandomness
from incrowd.errors import ConfigError
from incrowd.learning import CROSS_ENTROPY, Model
from incrowd.learning.opacus_engine import OpacusRecords
from incrowd.learning.record_engine import BatchedRecords
from incrowd.learning.records import Reader, RecordEngine, Records, StepNoise
from incrowd.learning.step_noise import FastNoise, GridNoise
from incrowd.settings.descent import Descent
from tests.learning.test_record_engine import KINDS, Seen, nothing, rows, spoilt, start, tilted
from tests.learning.test_records import training
from tests.privacy.receipts import roomy
from tests.reference import one_record

RANDOMNESS = SeededRandomness(seed=11)
Maker = Callable[[Model, Records, Descent], RecordEngine]


def ours(model: Model, records: Records, descent: Descent) -> RecordEngine:
    return BatchedRecords(model, records, descent)


def opacus(model: Model, records: Records, descent: Descent) -> RecordEngine:
    module = copy.deepcopy(model.module)
    optimizer = torch.optim.SGD(
        module.parameters(), lr=descent.learning_rate, momentum=descent.momentum, weight_decay=descent.weight_decay
    )
    features, labels = Reader(records, len(records)).take(torch.arange(len(records)))
    loader = DataLoader(TensorDataset(features, labels), batch_size=5)
    made_up = torch.zeros_like(features[0]), torch.zeros_like(labels[0])
    return OpacusRecords(module, optimizer, loader, criterion=torch.nn.CrossEntropyLoss(), made_up=made_up)


pytestmark = pytest.mark.parametrize("make", [ours, opacus])
MODELS = ["linear", "perceptron", "images", "hyperbolic", "normalised", "shared path", "convolutions"]
DESCENT = Descent(learning_rate=0.3, momentum=0.5, weight_decay=0.01)


def model_and_records(kind: str) -> tuple[Model, Records]:
    build, _, records = KINDS[kind]
    return build(), records


def stream(*indices: int) -> Stream:
    return RANDOMNESS.stream("batches", *indices)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("noise", [nothing, tilted])
def test_it_takes_the_steps_of_the_slow_twin(make: Maker, kind: str, noise: Callable[[Tensor], Tensor]) -> None:
    model, records = model_and_records(kind)
    settings, weights = training(steps=3, clip_norm=0.5, physical_batch=7), start(model)
    found = make(model, records, DESCENT).train(weights, settings, noise=noise, batches=stream())
    expected = one_record.trained(
        model, weights, records, settings, descent=DESCENT, loss=CROSS_ENTROPY, noise=noise, batches=stream()
    )
    assert found.weights.dtype == torch.float32
    assert float((found.weights - expected).norm() / (expected - weights).norm()) < 1e-5


@pytest.mark.parametrize("kind", ["perceptron", "normalised"])
def test_noise_is_asked_for_once_a_step_with_the_sum(make: Maker, kind: str) -> None:
    model, records = model_and_records(kind)
    seen, settings = Seen(), training(steps=6, sampling_prob=0.02, physical_batch=2)
    make(model, records, DESCENT).train(start(model), settings, noise=seen, batches=stream())
    assert [total.shape for total in seen.totals] == [(model.size,)] * 6
    assert sum(not total.any() for total in seen.totals) >= 1  # an empty batch among them


def test_the_divisor_is_public_however_many_records_there_are(make: Maker) -> None:
    model, records = model_and_records("linear")

    def moved(count: int) -> Tensor:
        few = replace(records, features=records.features[:count], labels=records.labels[:count])
        return (
            make(model, few, DESCENT).train(start(model), training(), noise=torch.ones_like, batches=stream()).weights
        )

    assert torch.equal(moved(1), moved(len(records)))


def test_only_what_noise_returns_moves_the_weights(make: Maker) -> None:
    model, records = model_and_records("perceptron")
    other = Records(features=records.features + 1, labels=records.labels.flip(0))
    fixed = torch.linspace(-1, 1, model.size)
    one, two = (
        make(model, data, DESCENT).train(start(model), training(), noise=lambda _: fixed.clone(), batches=stream())
        for data in (records, other)
    )
    assert torch.equal(one.weights, two.weights)


def test_a_record_that_is_not_finite_is_a_zero_contribution_and_counted(make: Maker) -> None:
    model, records = model_and_records("perceptron")
    bad, seen, expected = spoilt(records, np.nan, np.inf), Seen(), Seen()
    without = Records(
        features=torch.cat([records.features[:2], records.features[4:]]),
        labels=torch.cat([records.labels[:2], records.labels[4:]]),
    )
    settings = training(steps=1, sampling_prob=1, physical_batch=8)
    found = make(model, bad, DESCENT).train(start(model), settings, noise=seen, batches=stream())
    make(model, without, DESCENT).train(start(model), settings, noise=expected, batches=stream())
    assert found.dropped == 2
    assert found.weights.isfinite().all()
    torch.testing.assert_close(seen.totals[0], expected.totals[0], rtol=1e-5, atol=1e-6)


def test_one_record_moves_a_sum_by_at_most_the_clip_bound(make: Maker) -> None:
    model, records = model_and_records("perceptron")
    settings = training(steps=1, sampling_prob=1, clip_norm=0.3)
    sums = []
    for data in (records, Records(features=records.features[1:], labels=records.labels[1:])):
        seen = Seen()
        make(model, data, DESCENT).train(start(model), settings, noise=seen, batches=stream())
        sums.append(seen.totals[0])
    moved = float((sums[0] - sums[1]).norm())
    assert 0.1 < moved < 0.3 * (1 + 1e-6)


def test_batches_follow_the_stream_alone(make: Maker) -> None:
    model, records = model_and_records("perceptron")
    engine = make(model, records, DESCENT)
    one, two, other = (
        engine.train(start(model), training(), noise=tilted, batches=stream(index)).weights for index in (0, 0, 1)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_rounds_go_on_from_the_weights_given(make: Maker) -> None:
    model, records = model_and_records("perceptron")
    engine, fresh = make(model, records, DESCENT), make(model, records, DESCENT)
    first = engine.train(start(model), training(), noise=tilted, batches=stream()).weights
    again = engine.train(first, training(), noise=tilted, batches=stream(1)).weights
    torch.testing.assert_close(fresh.train(first, training(), noise=tilted, batches=stream(1)).weights, again)


@pytest.mark.parametrize("kind", ["grid", "system", "fast"])
def test_it_works_with_the_noises_that_there_are(make: Maker, kind: str) -> None:
    model, records = model_and_records("linear")
    settings, weights = training(noise_multiplier=0.5, clip_norm=0.5, physical_batch=8), start(model)
    noises: dict[str, Callable[[], StepNoise]] = {
        "grid": lambda: GridNoise.charged(settings, roomy(), RANDOMNESS, 0),
        "system": lambda: GridNoise.charged(settings, roomy(), SystemRandomness(), 0),
        "fast": lambda: FastNoise.of(settings, RANDOMNESS, 0),
    }
    found = make(model, records, DESCENT).train(weights, settings, noise=noises[kind](), batches=stream())
    assert found.weights.isfinite().all()
    if kind != "system":
        again = make(model, records, DESCENT).train(weights, settings, noise=noises[kind](), batches=stream())
        assert torch.equal(found.weights, again.weights)


def test_what_does_not_fit_is_refused_before_a_step(make: Maker) -> None:
    model, records, seen = *model_and_records("linear"), Seen()
    engine = make(model, records, DESCENT)
    with pytest.raises(ConfigError, match="most_records = 10"):
        engine.train(start(model), training(most_records=10), noise=seen, batches=stream())
    with pytest.raises(ConfigError, match="weights = "):
        engine.train(start(model)[1:], training(), noise=seen, batches=stream())
    assert not seen.totals
    assert len(rows()) > 10
