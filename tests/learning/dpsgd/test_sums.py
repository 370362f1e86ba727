"""Sums over the records of all silos, without noise: a server adds them up and hides them."""

from itertools import pairwise

import numpy as np
import pytest

from incrowd._random import Floats
from incrowd.errors import DataError
from incrowd.learning.dpsgd.engine import BatchedRecords, Records
from incrowd.privacy.mechanism.grid import RecordTraining, Whole
from incrowd.settings import Descent
from tests.learning.dpsgd.cases import KINDS, RANDOMNESS, Seen, rows, start, training, without
from tests.reference import one_record

MAKE, LOSS, *_ = KINDS["perceptron"]
MODEL, RECORDS = MAKE(), rows()
EVERYONE = training(steps=1, sampling_prob=1.0, clip_norm=0.5)
SAMPLED = training(steps=1, sampling_prob=0.25, clip_norm=0.5)


def dealt(*ends: int) -> list[Records]:
    """The records, cut at these places."""
    edges = [0, *ends, len(RECORDS)]
    return [without(without(RECORDS, b, len(RECORDS)), 0, a) for a, b in pairwise(edges)]


def sent(records: Records, settings: RecordTraining = EVERYONE, place: int = 0) -> Whole:
    engine = BatchedRecords(MODEL, records, Descent(learning_rate=0.1), loss=LOSS)
    total = engine.clipped_sum(start(MODEL), settings, batches=RANDOMNESS.stream("batches", place))
    return settings.whole(total.numpy())


def total_of(records: list[Records], settings: RecordTraining = EVERYONE) -> Whole:
    each = [sent(one, settings, place) for place, one in enumerate(records)]
    return Whole(steps=np.sum([one.steps for one in each], axis=0), step=each[0].step)


def reference() -> Floats:
    """The sum of the clipped gradients, one record after the other."""
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
    found: Floats = seen.totals[0].numpy()
    return found


@pytest.mark.parametrize("ends", [(), (1,), (0, 20, 20, 60)])
def test_the_sum_over_silos_is_that_of_the_slow_twin_over_all_records(ends: tuple[int, ...]) -> None:
    found, expected = total_of(dealt(*ends)).values, reference()
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)


def test_a_step_without_noise_is_that_which_the_steps_of_a_round_hide() -> None:
    engine, seen = BatchedRecords(MODEL, RECORDS, Descent(learning_rate=0.1), loss=LOSS), Seen()
    engine.train(start(MODEL), SAMPLED, noise=seen, batches=RANDOMNESS.stream("batches"))
    alone = engine.clipped_sum(start(MODEL), SAMPLED, batches=RANDOMNESS.stream("batches"))
    assert np.array_equal(alone.numpy(), seen.totals[0].double().numpy())


def test_one_record_moves_the_sum_by_its_bound_at_most() -> None:
    whole, parts = total_of(dealt(40)).values, dealt(40)
    moved = [np.linalg.norm(whole - total_of([parts[0], without(parts[1], n, n + 1)]).values) for n in (0, 9)]
    assert all(0.1 < each <= EVERYONE.sensitivity * (1 + 2.0**-19) for each in moved)


def test_a_silo_without_records_adds_nothing() -> None:
    assert not sent(without(RECORDS, 0, len(RECORDS))).steps.any()


def test_the_step_is_that_of_the_noise_and_no_sum_is_larger_than_its_records_can_make_it() -> None:
    size = MODEL.size
    few = training(steps=1, clip_norm=0.5, most_records=3)
    assert few.whole(np.full(size, 1.4 / np.sqrt(size))).step == few.noise.step(size, contributions_bound=3)
    with pytest.raises(DataError, match="3 contributions"):
        few.whole(np.full(size, 1.6 / np.sqrt(size)))
