"""Models of one's own, all the way: clients under a plan, silos that pay, and scores."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from incrowd import Local, ServerOptimizer
from incrowd._random import SeededRandomness
from incrowd.algorithms import ClientCohort, FedAvg, score
from incrowd.algorithms.silos import Silo
from incrowd.data import Clients, Examples, Partition
from incrowd.data.examples import each
from incrowd.errors import DataError, RehearsalFailed
from incrowd.learning import ClientTensors, CohortEngine, Model
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.learning.features import UnitNorm, transform
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Everyone, constant
from incrowd.privacy.release import PrivateRun
from incrowd.settings import Descent
from tests.algorithms.silos import paying
from tests.learning.own_models import CASES, CLASSES, WIDTH, Case

SIZES = (5, 9, 4, 7)
SEEDED = SeededRandomness(seed=2)
NAMES = ("GRU on tokens", "labels of a sequence", "transformer, inputs by name", "inputs in order", "tuned")


def examples_of(case: Case) -> Examples:
    tensors = case.clients(SIZES)
    classes = CLASSES if tensors.labels.dtype == torch.int64 else None
    features = each(lambda one: one.numpy(), tensors.features)
    return Examples(features=features, labels=tensors.labels.numpy(), classes=classes, scale=case.scale)


def clients_of(case: Case) -> Clients:
    examples = examples_of(case)
    lists = np.split(np.arange(len(examples)), np.cumsum(SIZES)[:-1])
    return Clients(examples=examples, partition=Partition.of(lists), test=examples)


def federation(case: Case, *, init_scale: float = 1.0) -> FedAvg[ClientCohort]:
    budget = Budget(epsilon=50.0, delta=1e-5)
    config = PlanConfig(members=len(SIZES), schedule=constant(rounds=2, cohort=len(SIZES)), sampling=Everyone)
    promise, model = config.calibrate(budget), case.model()
    data, local = clients_of(case), Local(learning_rate=0.1, batch_size=4)
    ledger = Ledger.in_memory(budget=budget, relation=promise.relation)
    private = PrivateRun(promise, ledger=ledger, randomness=SEEDED, size=model.size)
    engine = CohortEngine(model, ClientTensors.of(data), local, loss=case.loss)
    cohort = ClientCohort(engine=engine, private=private)
    return FedAvg(cohort, server=ServerOptimizer(), init_scale=init_scale)


@pytest.mark.parametrize("name", NAMES)
def test_clients_learn_under_a_plan_from_the_module_s_own_weights(name: str) -> None:
    case = CASES[name]
    algorithm, data = federation(case), clients_of(case)
    state = algorithm.init()
    assert np.array_equal(state.weights, case.model().weights.numpy())
    for _ in range(2):
        state, _ = algorithm.apply(state)
    assert data.test is not None
    found = score(algorithm.cohort.model, state.published, data.test, loss=case.loss)
    assert np.isfinite(found.loss)
    assert found.accuracy is not None
    assert 0 <= found.accuracy <= 1
    state_dict = algorithm.cohort.model.state_dict(state.published)
    assert state_dict.keys() == case.model().module.state_dict().keys()


def test_what_fails_on_made_up_records_costs_nothing() -> None:
    class OnlyAlone(nn.Module):
        """Draws where one record is alone and gradients are wanted."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.layer(x)
            if len(x) == 1 and torch.is_grad_enabled():
                outputs = outputs + torch.rand(1)
            return outputs

    case = CASES["tied"]
    model, run = Model(OnlyAlone()), paying()
    engine = BatchedRecords(model, case.records(40), Descent(learning_rate=0.5))
    silo = Silo("north", run, engine=engine)
    with pytest.raises(RehearsalFailed, match="global generator"):
        silo.answer(0, model.weights.double().numpy())
    assert run.ledger.spent().epsilon == 0


def test_sequences_are_scored_by_the_places_that_count() -> None:
    class Copy(nn.Module):
        """Says of each place what its token is."""

        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor([9.0]))

        def forward(self, tokens: Tensor) -> Tensor:
            outputs: Tensor = self.factor * nn.functional.one_hot(tokens, 3)
            return outputs

    tokens = np.array([[0, 1, 2, 0], [1, 1, 1, 1]])
    labels = np.array([[0, 1, 0, -100], [1, -100, -100, -100]])
    found = score(Model(Copy()), np.array([9.0]), Examples(features=tokens, labels=labels, classes=3))
    assert found.accuracy == pytest.approx((2 / 3 + 1) / 2)
    right, wrong = np.log(1 + 2 * np.exp(-9)), np.log(np.exp(9) + 2)
    assert found.loss == pytest.approx(((2 * right + wrong) / 3 + right) / 2, rel=1e-5)


def test_what_is_for_one_array_says_so() -> None:
    pairs, tokens = examples_of(CASES["inputs in order"]), examples_of(CASES["GRU on tokens"])
    with pytest.raises(DataError, match=r"several inputs \(features\[0\], features\[1\]\)"):
        transform(UnitNorm(), pairs)
    with pytest.raises(DataError, match="features are int64: such feature maps are for numbers, give float32"):
        transform(UnitNorm(), tokens)
