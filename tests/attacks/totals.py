"""The total of a round that a server gets, less its noise."""

from collections.abc import Sequence

import numpy as np
import torch

from incrowd import Budget
from incrowd._random import Floats
from incrowd.learning import CohortEngine
from incrowd.learning.engine import EngineTrainer
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Everyone, constant
from incrowd.privacy.release import PrivateRun
from tests.learning.cohorts import RANDOMNESS


def total(engine: CohortEngine, start: torch.Tensor, number: int, there: Sequence[int]) -> Floats:
    """The released total of the round of this number, of those who are there: its noise is the same for the same seed,
    so that two of them differ by what clients sent.
    """
    budget, clients = Budget(epsilon=30.0, delta=1e-3), engine.clients
    plan = PlanConfig(members=clients, schedule=constant(rounds=5, cohort=clients), sampling=Everyone).calibrate(budget)
    ledger = Ledger.in_memory(budget=budget, relation=plan.relation)
    private = PrivateRun(plan, ledger=ledger, randomness=RANDOMNESS, size=engine.model.size)
    trainer = EngineTrainer(engine, start, randomness=RANDOMNESS)
    for earlier in range(number):
        private.round(earlier).release()
    opened = private.round(number)
    opened.ask(trainer, present=lambda cohort: np.array([k for k in cohort if k in there]))
    return np.asarray(opened.release().total.values)
