"""The steps of a round: what every engine for DP-SGD has to do."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from incrowd._random import Stream
from incrowd.errors import ConfigError, DataError
from incrowd.learning import CROSS_ENTROPY, SQUARED, linear, mlp
from incrowd.learning.dpsgd.engine import BatchedRecords, Records, StepNoise, Trained
from incrowd.privacy.mechanism.grid import RecordTraining
from incrowd.settings import Descent
from tests.learning.dpsgd.cases import (
    FEATURES,
    KINDS,
    RANDOMNESS,
    Seen,
    nothing,
    rows,
    spoilt,
    start,
    tilted,
    training,
    without,
)
from tests.reference import one_record

PLAIN = Descent(learning_rate=0.3)
DESCENT = Descent(learning_rate=0.3, momentum=0.5, weight_decay=0.01)
FEW_KINDS = ["perceptron", "normalised"]


def stream(*indices: int) -> Stream:
    return RANDOMNESS.stream("batches", *indices)


def engine(kind: str, records: Records | None = None, descent: Descent = PLAIN) -> BatchedRecords:
    make, loss, its, _ = KINDS[kind]
    return BatchedRecords(make(), its if records is None else records, descent, loss=loss)


def round_of(one: BatchedRecords, settings: RecordTraining, noise: StepNoise = tilted, *indices: int) -> Trained:
    return one.train(start(one.model), settings, noise=noise, batches=stream(*indices))


def twin_of(one: BatchedRecords, settings: RecordTraining, noise: StepNoise) -> Tensor:
    return one_record.trained(
        one.model,
        start(one.model),
        one.records,
        settings,
        descent=one.descent,
        loss=one.loss,
        noise=noise,
        batches=stream(),
    )


DESCENTS = [PLAIN, DESCENT, Descent(learning_rate=0.3, weight_decay=0.1)]


@pytest.mark.parametrize(("kind", "descent"), [(kind, DESCENTS[n % 3]) for n, kind in enumerate(KINDS)])
def test_every_kind_of_model_takes_the_steps_of_the_slow_twin(kind: str, descent: Descent) -> None:
    one = engine(kind, descent=descent)
    settings = training(steps=4, clip_norm=0.5, physical_batch=40)
    noise = tilted if descent is PLAIN else nothing
    found, expected = round_of(one, settings, noise), twin_of(one, settings, noise)
    assert found.weights.dtype == torch.float32
    assert float((found.weights - expected).norm() / (expected - start(one.model)).norm()) < 1e-5
    assert found.dropped == 0


@pytest.mark.parametrize("kind", FEW_KINDS)
def test_the_physical_batch_changes_nothing_but_rounding(kind: str) -> None:
    one = engine(kind)
    found = [round_of(one, training(physical_batch=size)).weights for size in (1, 5, 22, 1000)]
    for first, second in pairwise(found):
        assert float((first - second).norm()) < 1e-5 * float((first - start(one.model)).norm())


@pytest.mark.parametrize("kind", [*FEW_KINDS, "narrow convolutions", "branching"])
def test_never_more_records_at_once_than_a_physical_batch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, take = list[int](), Records.take

    def counted(self: Records, chosen: Tensor) -> Any:
        seen.append(len(chosen))
        return take(self, chosen)

    monkeypatch.setattr(Records, "take", counted)
    round_of(engine(kind), training(steps=1, sampling_prob=1, physical_batch=20))
    assert max(seen) <= 20
    assert sum(seen) == len(KINDS[kind][2])


@pytest.mark.parametrize("kind", [*FEW_KINDS, "narrow convolutions", "branching"])
def test_a_record_that_is_not_finite_is_a_zero_contribution_and_counted(kind: str) -> None:
    records = KINDS[kind][2]
    settings, found, expected = training(steps=1, sampling_prob=1), Seen(), Seen()
    trained = round_of(engine(kind, spoilt(records, np.nan, np.inf, -np.inf)), settings, found)
    round_of(engine(kind, without(records, 2, 5)), settings, expected)
    assert trained.dropped == 3
    assert trained.weights.isfinite().all()
    torch.testing.assert_close(found.totals[0], expected.totals[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", FEW_KINDS)
def test_an_empty_batch_is_a_step_of_noise(kind: str) -> None:
    seen, one, settings = Seen(), engine(kind), training(steps=5, sampling_prob=1e-9)
    round_of(one, settings, seen)
    assert [total.shape for total in seen.totals] == [(one.size,)] * 5
    assert not torch.cat(seen.totals).any()
    moved = round_of(one, settings).weights - start(one.model)
    torch.testing.assert_close(moved, -5 * 0.3 / 8 * torch.linspace(-1, 1, one.size), rtol=1e-4, atol=1e-5)
    none = without(KINDS[kind][2], 0, len(one.records))
    round_of(engine(kind, none), training(sampling_prob=1), seen)
    assert not torch.cat(seen.totals).any()


def test_sums_are_exact_where_float32_is_not() -> None:
    # A large contribution, many tiny ones, and the large one taken away again: in float32 the tiny ones would vanish.
    features, seen = torch.ones(20_002, 1), Seen()
    labels = torch.cat([torch.tensor([-1e4]), torch.full((20_000,), -1e-4), torch.tensor([1e4])])
    one = BatchedRecords(linear(1, 1, bias=False), Records(features=features, labels=labels), PLAIN, loss=SQUARED)
    settings = training(steps=1, sampling_prob=1, clip_norm=1e5)
    one.train(torch.zeros(1), settings, noise=seen, batches=stream())
    assert seen.totals[0].item() == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("kind", [*FEW_KINDS, "narrow convolutions"])
def test_one_record_moves_a_sum_by_at_most_the_sensitivity(kind: str) -> None:
    records, sums = KINDS[kind][2], []
    settings = training(steps=1, sampling_prob=1, clip_norm=0.03)
    for held in (records, without(records, 0, 1)):
        seen = Seen()
        round_of(engine(kind, held), settings, seen)
        sums.append(seen.totals[0].double())
    assert 0.01 < float((sums[0] - sums[1]).norm()) < settings.sensitivity
    # float32, where there are few, is nearer to the exact sum than the sensitivity allows for
    exact = Seen()
    one_record.trained(
        engine(kind).model, start(engine(kind).model), records, settings, descent=PLAIN, loss=CROSS_ENTROPY,
        noise=exact, batches=stream(),
    )  # fmt: skip
    assert float((sums[0] - exact.totals[0]).norm()) < (settings.sensitivity - settings.clip_norm) / 2


@pytest.mark.parametrize("kind", [*FEW_KINDS, "narrow convolutions"])
def test_rounding_takes_no_single_record_beyond_the_clip_bound(kind: str) -> None:
    records, seen, settings = KINDS[kind][2], Seen(), training(steps=1, sampling_prob=1, clip_norm=0.01)
    one = engine(kind)
    for row in range(20):
        one.records = without(without(records, row + 1, len(records)), 0, row)
        round_of(one, settings, seen)
    lengths = torch.stack([total.double().norm() for total in seen.totals])
    assert float(lengths.max()) <= 0.01
    assert float(lengths.min()) > 0.01 * (1 - 2.0**-21)


def test_the_divisor_is_public_however_many_records_there_are() -> None:
    records = KINDS["linear"][2]
    few = round_of(engine("linear", without(records, 1, len(records)), DESCENT), training(), torch.ones_like)
    assert torch.equal(few.weights, round_of(engine("linear", None, DESCENT), training(), torch.ones_like).weights)


def test_only_the_result_of_noise_moves_the_weights() -> None:
    records = KINDS["perceptron"][2]
    other = Records(features=torch.as_tensor(records.features) + 1, labels=records.labels.flip(0))
    fixed = torch.linspace(-1, 1, engine("perceptron").size)
    one, two = (
        round_of(engine("perceptron", held), training(), lambda _: fixed.clone()).weights for held in (records, other)
    )
    assert torch.equal(one, two)


def test_batches_follow_the_stream_alone_and_rounds_go_on_from_the_weights_given() -> None:
    one, fresh = engine("perceptron", descent=DESCENT), engine("perceptron", descent=DESCENT)
    first, again, other = (round_of(one, training(), tilted, index).weights for index in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    kept = first.clone()
    second, twin = (its.train(first, training(), noise=tilted, batches=stream(1)).weights for its in (one, fresh))
    assert torch.equal(second, twin)
    assert torch.equal(first, kept)


def test_what_does_not_fit_is_refused_before_a_step() -> None:
    with pytest.raises(DataError, match=r"cannot take records of the shape \(12,\)"):
        BatchedRecords(mlp((5, 4)), rows(), PLAIN)
    with pytest.raises(DataError, match="'cross entropy' does not fit a model with 3 outputs"):
        BatchedRecords(mlp((FEATURES, 3)), rows(), PLAIN)
    one, seen = engine("linear"), Seen()
    with pytest.raises(ConfigError, match="most_records = 10"):
        round_of(one, training(most_records=10), seen)
    with pytest.raises(ConfigError, match="weights = "):
        one.train(start(one.model)[1:], training(), noise=seen, batches=stream())
    assert not seen.totals
