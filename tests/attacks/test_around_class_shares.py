"""Attack: the round that asks how frequent classes are, by a client who wants to say more than the others."""

import numpy as np
import pytest
import torch

from incrowd._random import Floats
from incrowd.learning import ClientTensors, CohortEngine
from incrowd.privacy.mechanism.clipping import NormalisedClip
from tests.attacks.totals import total as released
from tests.federated.test_centre import CLIENTS
from tests.learning.cohorts import CLASSES, RANDOMNESS
from tests.learning.test_class_shares import LOCAL, MODEL, uneven

EVERYONE = list(range(CLIENTS))
OTHERS = [k for k in EVERYONE if k != 1]


def total(data: ClientTensors, number: int, there: list[int], *, above: float = 0.1) -> Floats:
    """See `totals`."""
    start = torch.cat([MODEL.initial(RANDOMNESS), torch.full((CLASSES,), above)])
    return released(CohortEngine(MODEL, data, LOCAL), start, number, there)


@pytest.mark.parametrize("kind", range(CLASSES))
@pytest.mark.parametrize("number", [0, 1])
def test_whoever_has_one_class_alone_says_no_more_than_the_bound(kind: int, number: int) -> None:
    data = uneven()
    data.labels[torch.as_tensor(data.examples(1), dtype=torch.int64)] = kind
    moved = total(data, number, EVERYONE) - total(data, number, OTHERS)
    assert np.linalg.norm(moved) <= NormalisedClip().clip_norm * (1 + 1e-6)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -5.0, 3e38])
def test_whatever_a_server_says_of_everyone_nobody_says_more_than_the_bound(odd: float) -> None:
    moved = total(uneven(), 1, EVERYONE, above=odd) - total(uneven(), 1, OTHERS, above=odd)
    assert np.linalg.norm(moved) <= NormalisedClip().clip_norm * (1 + 1e-6)


def test_what_one_client_has_changes_nobody_elses_part() -> None:
    data = uneven()
    data.labels[torch.as_tensor(data.examples(1), dtype=torch.int64)] = 4
    for number in (0, 1):
        assert np.array_equal(total(data, number, OTHERS), total(uneven(), number, OTHERS))


def test_control_everyone_says_something() -> None:
    for number in (0, 1):
        moved = total(uneven(), number, EVERYONE) - total(uneven(), number, OTHERS)
        assert np.linalg.norm(moved) == pytest.approx(NormalisedClip().clip_norm, rel=1e-4)
