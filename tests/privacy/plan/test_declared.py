"""Declared numbers; what happens where they are used is in tests/attacks/test_counted.py and test_statements.py."""

from dataclasses import replace
from typing import Any

import pytest

from incrowd.errors import ConfigError
from incrowd.privacy.mechanism.clipping import NormalisedClip
from incrowd.privacy.mechanism.grid import GaussianNoise
from incrowd.privacy.paid import RoundNoise
from tests.algorithms.silos import plan

EXTREME = GaussianNoise(noise_multiplier=1e12, clip_norm=1.0)
FINE = GaussianNoise(noise_multiplier=1.0, clip_norm=1.0)


ROUND = RoundNoise(round=0, clip=NormalisedClip(), noise=FINE, clients=100)


@pytest.mark.parametrize("changes", [{"noise": EXTREME}, {"noise": EXTREME, "local": True}, {"bits": EXTREME}])
def test_noise_that_fits_no_grid_is_seen_before_it_is_paid_for(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="noise scale"):
        replace(ROUND, **changes).check(1000)


def test_noise_of_a_silo_that_fits_no_grid_is_seen_before_it_is_paid_for() -> None:
    plan().training(1000)
    with pytest.raises(ConfigError, match="noise scale"):
        plan(noise=1e12).training(1000)
