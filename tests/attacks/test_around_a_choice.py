"""Attack: the round of a choice, by a client who wants to say more than the others, and by a server's offer."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from incrowd._random import Floats
from incrowd.data.inputs import single
from incrowd.learning import ClientTensors, CohortEngine
from incrowd.privacy.mechanism.clipping import NormalisedClip
from tests.attacks.test_around_a_centre import ODD, with_odd
from tests.attacks.totals import total as released
from tests.federated.test_centre import CLIENTS
from tests.learning.cohorts import FEATURES, RANDOMNESS, clients
from tests.learning.test_centre import MODEL
from tests.learning.test_choice import BOTH, told_by

DATA = told_by(clients(), pixels=True)


def total(data: ClientTensors, number: int, there: list[int], *, chosen: float = 0.0) -> Floats:
    """See `totals`."""
    start = torch.cat([MODEL.initial(RANDOMNESS), torch.tensor([chosen]), torch.zeros(FEATURES)])
    return released(CohortEngine(MODEL, data, BOTH), start, number, there)


EVERYONE = list(range(CLIENTS))
OTHERS = [k for k in EVERYONE if k != 1]


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize(("number", "chosen"), [(0, 0.0), (1, 1.0), (2, 1.0), (2, float("nan"))])
def test_nobody_says_more_than_the_bound(odd: float, number: int, chosen: float) -> None:
    data = with_odd(DATA, odd)
    moved = total(data, number, EVERYONE, chosen=chosen) - total(data, number, OTHERS, chosen=chosen)
    assert np.linalg.norm(moved) <= NormalisedClip().clip_norm * (1 + 1e-6)


def test_control_everyone_who_can_tell_says_something() -> None:
    for number in (0, 1, 2):
        moved = total(DATA, number, EVERYONE) - total(DATA, number, OTHERS)
        assert np.linalg.norm(moved) == pytest.approx(NormalisedClip().clip_norm, rel=1e-4)


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_an_odd_client_changes_nobody_elses_part(odd: float) -> None:
    for number in (0, 1, 2):
        assert np.array_equal(total(with_odd(DATA, odd), number, OTHERS), total(DATA, number, OTHERS))


def test_one_client_has_one_vote_whatever_it_holds() -> None:
    """Labels, and how many examples there are, change what a client votes and not how loudly."""
    mine = torch.as_tensor(DATA.examples(6), dtype=torch.int64)
    own = DATA.labels[mine]
    for others in (own.roll(1), own * 0, own % 2):
        labels = DATA.labels.clone()
        labels[mine] = others
        moved = total(replace(DATA, labels=labels), 0, EVERYONE) - total(DATA, 0, EVERYONE)
        assert abs(moved[0]) <= 2 * NormalisedClip().clip_norm * (1 + 1e-6)
        assert not moved[1:-1].any()


def test_votes_tell_nothing_of_how_far_examples_are_apart() -> None:
    """Examples that are a thousand times as long are told apart as well as ever, and say the same."""
    longer = replace(DATA, features=single(DATA.features) * 1000)
    assert np.array_equal(total(longer, 0, EVERYONE), total(DATA, 0, EVERYONE))
