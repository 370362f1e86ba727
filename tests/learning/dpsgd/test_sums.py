"""Sums over the records of all silos, without noise: the server adds them up and hides them."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.learning.dpsgd.records import Records
from incrowd.learning.dpsgd.sums import SiloSums
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.mechanism.grid import Whole
from incrowd.settings.descent import Descent
from tests.learning.dpsgd.cases import KINDS, RANDOMNESS, Seen, rows, start, training, without
from tests.reference import one_record

MAKE, LOSS, _, _ = KINDS["perceptron"]
MODEL, RECORDS, CLIP = MAKE(), rows(), FixedClip(clip_norm=0.5)
EVERYONE = training(steps=1, sampling_prob=1.0, clip_norm=0.5)
SAMPLED = training(steps=1, sampling_prob=0.25, clip_norm=0.5)


def dealt(*ends: int) -> list[Records]:
    """The records, cut at these places."""
    edges = [0, *ends, len(RECORDS)]
    return [without(without(RECORDS, b, len(RECORDS)), 0, a) for a, b in pairwise(edges)]


def total_of(records: Sequence[Records], settings: object = EVERYONE, order: Sequence[int] | None = None) -> Whole:
    engines = [BatchedRecords(MODEL, one, Descent(learning_rate=0.1), loss=LOSS) for one in records]
    silos = SiloSums(engines=engines, training=settings, randomness=RANDOMNESS)  # type: ignore[arg-type]
    return silos(start(MODEL)).cohort(range(len(records)) if order is None else order, round=2).collected(CLIP).total


def reference() -> Floats:
    """Minus the sum of the clipped gradients, one record after the other."""
    seen = Seen()
    one_record.trained(
        MODEL,
        start(MODEL),
        RECORDS,
        EVERYONE,
        descent=Descent(learning_rate=0.1),
        loss=LOSS,
        noise=seen,
        batches=RANDOMNESS.stream("batches"),
    )
    found: Floats = -seen.totals[0].numpy()
    return found


@pytest.mark.parametrize("ends", [(), (1,), (0, 20, 20, 60)])
def test_the_sum_over_silos_is_that_of_the_slow_twin_over_all_records(ends: tuple[int, ...]) -> None:
    found, expected = total_of(dealt(*ends)).values, reference()
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)


def test_silos_add_up_exactly_in_any_order() -> None:
    records = dealt(10, 40, 70)
    first, other = total_of(records, SAMPLED), total_of(records, SAMPLED, order=[3, 0, 2, 1])
    alone = [total_of(records, SAMPLED, order=[silo]).steps for silo in range(4)]
    assert np.array_equal(first.steps, other.steps)
    assert np.array_equal(first.steps, np.sum(alone, axis=0))


def test_one_record_moves_the_sum_by_its_bound_at_most() -> None:
    whole = total_of(dealt(40)).values
    bound = EVERYONE.sensitivity * (1 + 2.0**-19)
    moved = [np.linalg.norm(whole - total_of([*dealt(40)[:1], without(dealt(40)[1], n, n + 1)]).values) for n in (0, 9)]
    assert all(0.1 < each <= bound for each in moved)


def test_a_silo_without_records_adds_nothing() -> None:
    assert not total_of(dealt(0), order=[0]).steps.any()


def test_the_step_is_that_of_the_noise() -> None:
    total = total_of(dealt())
    noise = EVERYONE.noise
    assert total.step == noise.step(total.steps.size, contributions_bound=EVERYONE.most_records)


def test_another_clip_than_the_plans_is_refused() -> None:
    engines = [BatchedRecords(MODEL, RECORDS, Descent(learning_rate=0.1), loss=LOSS)]
    silos = SiloSums(engines=engines, training=EVERYONE, randomness=RANDOMNESS)
    with pytest.raises(ConfigError, match="clip"):
        silos(start(MODEL)).cohort([0], round=0).collected(FixedClip(clip_norm=0.6))
