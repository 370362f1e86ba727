import math
from pathlib import Path

import numpy as np
import pytest

from incrowd.privacy.account import accounting
from tests import statistics
from tests.prices import SharedPrices
from tests.statistics import ODD, chi_square, fair, ks, rejects_wrong_scale, uncorrelated

GENERATOR = np.random.Generator(np.random.PCG64(11))
NORMALS = GENERATOR.standard_normal(20_000)
LAPLACES = GENERATOR.laplace(size=20_000)


def test_each_check_accepts_its_own_distribution_and_rejects_the_other() -> None:
    scaled = NORMALS * np.sqrt(2)
    assert rejects_wrong_scale(ks("norm"), NORMALS)
    assert rejects_wrong_scale(ks("laplace"), LAPLACES)
    assert rejects_wrong_scale(statistics.NORMAL_MOMENTS, NORMALS)
    assert rejects_wrong_scale(statistics.LAPLACE_MOMENTS, LAPLACES)
    assert not rejects_wrong_scale(ks("laplace"), scaled)
    assert not rejects_wrong_scale(statistics.LAPLACE_MOMENTS, scaled)


@pytest.mark.parametrize("wrong", [NORMALS + 0.1, NORMALS * 1.05, np.clip(NORMALS, -2.2, 2.2), np.round(NORMALS, 0)])
def test_moments_notice_a_shift_a_scale_missing_tails_and_coarse_steps(wrong: np.ndarray) -> None:
    assert statistics.NORMAL_MOMENTS(wrong) < ODD


def test_counts_and_tosses() -> None:
    assert chi_square(np.array([250, 251, 499]), np.array([0.25, 0.25, 0.5])) > 0.9
    assert chi_square(np.array([350, 251, 399]), np.array([0.25, 0.25, 0.5])) < ODD
    assert fair(5_010, 10_000) > 0.5
    assert fair(5_500, 10_000) < ODD
    assert fair(5_500, 10_000, chance=0.55) > 0.5


def test_correlation_is_noticed() -> None:
    assert uncorrelated(NORMALS, LAPLACES) > ODD
    assert uncorrelated(NORMALS, LAPLACES + 0.1 * NORMALS) < ODD


KEY = ("PLD", 1e-4, "ADD_OR_REMOVE_ONE", "epsilon", 1e-5, (("{}", 3),))


@pytest.mark.parametrize("price", [0.1 + 0.2, math.inf, 5e-324])
def test_another_process_reads_exactly_what_was_computed(tmp_path: Path, price: float) -> None:
    one, other = SharedPrices(tmp_path), SharedPrices(tmp_path)
    assert KEY not in other
    one[KEY] = price
    assert KEY in other
    assert other[KEY] == price
    assert (*KEY[:-1], (("{}", 4),)) not in other
    assert len(list(tmp_path.iterdir())) == 1


def test_they_are_in_use() -> None:
    assert type(accounting._computed) is SharedPrices
