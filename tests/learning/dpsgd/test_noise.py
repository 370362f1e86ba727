from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
import torch
from scipy import stats

from incrowd._random import Randomness, SeededRandomness, SystemRandomness
from incrowd.errors import DataError
from incrowd.learning.dpsgd.engine import StepNoise, on_tensors
from incrowd.privacy.mechanism.grid import RecordTraining
from tests.learning.dpsgd.cases import training
from tests.privacy.receipts import paid

SETTINGS = training(noise_multiplier=1.5, clip_norm=2.0, most_records=100)
SEEDED = SeededRandomness(seed=3)


def charged(settings: RecordTraining, randomness: Randomness, *indices: int) -> StepNoise:
    """The noise of a round's steps on a grid, paid for."""
    receipt, steps = paid(settings.noise, times=settings.steps, randomness=randomness), count()
    return on_tensors(lambda total: settings.noised(total, receipt=receipt, at=("noise", *indices, next(steps))))


NOISES: dict[str, Callable[[], StepNoise]] = {
    "grid": lambda: charged(SETTINGS, SEEDED, 1),
    "system": lambda: charged(SETTINGS, SystemRandomness(), 1),
}


@pytest.mark.parametrize("kind", NOISES)
def test_the_noise_is_gaussian_of_the_multiplier_times_the_clip_bound(kind: str) -> None:
    noise = NOISES[kind]()
    total = torch.linspace(-1, 1, 20_000, dtype=torch.float64)
    drawn = np.concatenate([(noise(total) - total).double().numpy() for _ in range(2)])
    assert stats.kstest(drawn / 3, "norm").pvalue > 1e-3
    # Negative control: other multipliers are noticed.
    assert stats.kstest(drawn / 2, "norm").pvalue < 1e-6
    assert stats.kstest(drawn / 4.5, "norm").pvalue < 1e-6
    assert abs(np.corrcoef(drawn[:20_000], drawn[20_000:])[0, 1]) < 4 / np.sqrt(20_000)


def test_seeded_noise_repeats_itself_and_differs_between_rounds_and_seeds() -> None:
    total = torch.zeros(50, dtype=torch.float64)
    first = charged(SETTINGS, SEEDED, 1)(total)
    torch.manual_seed(0)
    assert torch.equal(charged(SETTINGS, SEEDED, 1)(total), first)
    for randomness, indices in ((SEEDED, (2,)), (SEEDED, (1, 0)), (SeededRandomness(seed=4), (1,))):
        assert not torch.isclose(charged(SETTINGS, randomness, *indices)(total), first).any()


def test_what_cannot_be_a_sum_of_clipped_gradients_is_refused_in_earnest() -> None:
    noise = charged(SETTINGS, SEEDED)
    with pytest.raises(DataError, match="not finite"):
        noise(torch.full((3,), torch.nan, dtype=torch.float64))
    with pytest.raises(DataError, match="norm above"):
        noise(torch.full((3,), 200.0, dtype=torch.float64))
