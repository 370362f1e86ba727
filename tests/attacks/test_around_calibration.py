"""Attack: the round that asks how strongly to speak, by a client who wants to say more, and a server who asks oddly."""

import numpy as np
import pytest
import torch

from incrowd._random import Floats
from incrowd.learning import ClientTensors, CohortEngine
from incrowd.privacy.mechanism.clipping import NormalisedClip
from tests.attacks.totals import total as released
from tests.federated.test_centre import CLIENTS
from tests.learning.cohorts import CLASSES, RANDOMNESS, clients
from tests.learning.test_calibration import LOCAL
from tests.learning.test_centre import MODEL, unit

EVERYONE = list(range(CLIENTS))
OTHERS = [k for k in EVERYONE if k != 1]


def total(data: ClientTensors, number: int, there: list[int], *, mark: float = -1.0, scale: float = 1.0) -> Floats:
    """See `totals`."""
    start = torch.cat([scale * MODEL.initial(RANDOMNESS), torch.zeros(CLASSES), torch.tensor([mark])])
    return released(CohortEngine(MODEL, data, LOCAL), start, number, there)


def odd_one() -> ClientTensors:
    """Client 1 has examples of its own kind, much longer than anybody's."""
    data = unit(clients())
    data.features[torch.as_tensor(data.examples(1), dtype=torch.int64)] *= 1e6
    return data


@pytest.mark.parametrize("number", [0, 1, 4])
@pytest.mark.parametrize("mark", [-1.0, 0.0, 3.0, np.nan, np.inf])
@pytest.mark.parametrize("scale", [1.0, 3e38])
def test_whatever_a_server_asks_nobody_says_more_than_the_bound(number: int, mark: float, scale: float) -> None:
    moved = total(odd_one(), number, EVERYONE, mark=mark, scale=scale)
    moved = moved - total(odd_one(), number, OTHERS, mark=mark, scale=scale)
    assert np.linalg.norm(moved) <= NormalisedClip().clip_norm * (1 + 1e-6)


@pytest.mark.parametrize("number", [0, 4])
def test_what_one_client_has_changes_nobody_elses_part(number: int) -> None:
    assert np.array_equal(total(odd_one(), number, OTHERS), total(unit(clients()), number, OTHERS))


def test_control_everyone_says_something() -> None:
    moved = total(odd_one(), 4, EVERYONE) - total(odd_one(), 4, OTHERS)
    assert np.linalg.norm(moved) == pytest.approx(NormalisedClip().clip_norm, rel=1e-4)
