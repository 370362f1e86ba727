"""Attack: the round that asks how strongly to speak, by a client who wants to say more, and a server who asks oddly."""

import numpy as np
import pytest
import torch

from incrowd.learning import ClientTensors, CohortEngine
from incrowd.learning.cohort import EngineTrainer
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import NormalisedClip
from incrowd.privacy.release import PrivateRun
from tests.federated.test_centre import BUDGET, CLIENTS, plan_with
from tests.learning.cohorts import CLASSES, RANDOMNESS, clients
from tests.learning.test_calibration import LOCAL
from tests.learning.test_centre import MODEL, unit

EVERYONE = list(range(CLIENTS))
OTHERS = [k for k in EVERYONE if k != 1]


def total(data: ClientTensors, number: int, there: list[int], *, mark: float = -1.0, scale: float = 1.0) -> np.ndarray:
    """What is released of a round, less its noise: that is the same for the same seed."""
    plan = plan_with()
    ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
    private = PrivateRun(plan, ledger=ledger, randomness=RANDOMNESS, size=MODEL.size)
    start = torch.cat([scale * MODEL.initial(RANDOMNESS), torch.zeros(CLASSES), torch.tensor([mark])])
    trainer = EngineTrainer(CohortEngine(MODEL, data, LOCAL), start, randomness=RANDOMNESS)
    for earlier in range(number):
        private.round(earlier).release()
    opened = private.round(number)
    opened.ask(trainer, present=lambda cohort: np.array([k for k in cohort if k in there]))
    return np.asarray(opened.release().total.values)


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
