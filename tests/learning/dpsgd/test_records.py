import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from incrowd._random import Bits, Floats, Integers, SeededRandomness
from incrowd.errors import ConfigError, DataError
from incrowd.learning.dpsgd.engine import Records, poisson_batches
from incrowd.privacy.mechanism.grid import FLOAT32_RECORDS
from incrowd.settings import Descent
from tests.learning.cohorts import clients
from tests.learning.dpsgd.cases import training

STREAM = SeededRandomness(seed=5)


class Listed:
    """A stream whose bits are a given list, in order."""

    def __init__(self, *bits: int) -> None:
        self.left = np.array(bits, np.uint64)

    def bits(self, size: int) -> Bits:
        taken, self.left = self.left[:size], self.left[size:]
        assert len(taken) == size
        return taken

    def normals(self, size: int) -> Floats:
        raise AssertionError("a batch needs no normals")

    laplaces = normals


@pytest.mark.parametrize("field", ["steps", "physical_batch", "most_records"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_counts_are_whole_and_at_least_one(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} = "):
        training(**{field: value})


@pytest.mark.parametrize("field", ["sampling_prob", "expected_batch", "clip_norm", "noise_multiplier"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf])
def test_no_step_without_noise_bound_denominator_or_chance(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} = "):
        training(**{field: value})


@pytest.mark.parametrize("clip_norm", [1e-21, 1e21])
def test_clip_bounds_at_the_ends_of_float32_are_refused(clip_norm: float) -> None:
    with pytest.raises(ConfigError, match="give a bound from 1e-20 to 1e20"):
        training(clip_norm=clip_norm)


def test_the_sensitivity_covers_the_rounding_of_two_float32_sums() -> None:
    settings = training(clip_norm=3.0)
    rounding = FLOAT32_RECORDS**2 * 2.0**-24 * 3.0
    assert settings.sensitivity == pytest.approx(3.0 + 2 * rounding, rel=1e-12)


@pytest.mark.parametrize(
    ("field", "value"), [("learning_rate", 0), ("momentum", -0.1), ("momentum", 1), ("weight_decay", math.nan)]
)
def test_a_descent_that_cannot_be_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} = "):
        Descent(**{"learning_rate": 0.1, field: value})


@pytest.mark.parametrize("real", [True, False])
def test_a_silo_holds_the_examples_of_one_client(real: bool) -> None:
    data = clients(real=real, offset=0.5)
    records = Records.of(data, 2)
    rows = torch.as_tensor(data.examples(2).astype(np.int64))
    assert (len(records), records.features.shape[1:]) == (30, (24,))
    for chosen in ([3, 0], [5], [], [7, 7]):
        features, labels = records.take(torch.tensor(chosen, dtype=torch.int64))
        torch.testing.assert_close(features, data.features[rows[chosen]].float() * data.scale + data.offset)
        assert labels.tolist() == data.labels[rows[chosen]].tolist()


def test_records_that_are_not_a_table_are_refused() -> None:
    with pytest.raises(DataError, match=r"features are torch\.float64"):
        Records(features=torch.zeros(2, 3, dtype=torch.float64), labels=torch.zeros(2))
    with pytest.raises(DataError, match=r"features have the shape \(2,\)"):
        Records(features=torch.zeros(2), labels=torch.zeros(2))
    with pytest.raises(DataError, match="a label for each"):
        Records(features=torch.zeros(2, 3), labels=torch.zeros(3))


def test_more_records_than_the_public_bound_are_refused() -> None:
    with pytest.raises(ConfigError, match="most_records = 9"):
        next(poisson_batches(10, training(most_records=9), batches=STREAM.stream("batches")))
    assert len(list(poisson_batches(9, training(most_records=9), batches=STREAM.stream("batches")))) == 3


def _standard_errors(batches: list[Integers], records: int, probability: float) -> float:
    expected = len(batches) * records * probability
    return float((sum(map(len, batches)) - expected) / math.sqrt(expected * (1 - probability)))


@pytest.mark.parametrize("probability", [0.003, 0.25, 0.9])
def test_records_take_part_with_the_probability_given(probability: float) -> None:
    settings = training(sampling_prob=probability, steps=400)
    batches = list(poisson_batches(503, settings, batches=STREAM.stream("batches")))
    assert abs(_standard_errors(batches, 503, probability)) < 4
    # Negative control: other probabilities are noticed.
    assert abs(_standard_errors(batches, 503, probability * 2 / 3)) > 4
    assert abs(_standard_errors(batches, 503, min(probability * 3 / 2, 0.99))) > 4
    each = np.bincount(np.concatenate(batches), minlength=503)
    assert abs(each - 400 * probability).max() < 5.5 * math.sqrt(400 * probability * (1 - probability)) + 1
    together = sum(len(set(one) & set(other)) for one, other in pairwise(map(np.ndarray.tolist, batches)))
    expected = 399 * 503 * probability**2
    assert abs(together - expected) < 5 * math.sqrt(expected) + 2


@given(st.floats(2.0**-40, 1, exclude_max=True), st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=12))
def test_a_record_takes_part_when_its_80_bits_are_below_the_probability(probability: float, drawn: list[int]) -> None:
    high, low = divmod(int(probability * 2**80), 2**64)
    drawn[0] = drawn[0] - drawn[0] % 2**16 + high  # at least one tie
    coarse = [int(part) for part in np.array(drawn, np.uint64).view(np.uint16)]
    fine = [(low + number - 1) % 2**64 for number in range(coarse.count(high))]
    left = iter(fine)
    whole = [bits * 2**64 + (next(left) if bits == high else 0) for bits in coarse]
    expected = [number for number, bits in enumerate(whole) if bits < high * 2**64 + low]
    batches = Listed(*drawn, *fine)
    (found,) = poisson_batches(len(coarse), training(steps=1, sampling_prob=probability), batches=batches)
    assert found.tolist() == expected
