"""Attack: what fails after a round was charged, and could have been known before, wastes budget that is gone for good.

Measured before there were rehearsals: a silo's own module with a programming error in it cost 6.07 of 8.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from incrowd import Local, ServerOptimizer, _files
from incrowd._random import Floats, SystemRandomness
from incrowd.algorithms import ClientCohort, FedAvg, Silo
from incrowd.data import Clients
from incrowd.errors import BudgetExceeded, ConfigError, DataError, IncrowdError, RehearsalFailed
from incrowd.learning import ClientTensors, CohortEngine, Model
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.learning.dpsgd.records import Records, StepNoise, Trained
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.privacy.mechanism.clipping import NormalisedClip, QuantileClip
from incrowd.privacy.paid import RoundNoise
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Everyone, Schedule, Step, constant
from incrowd.privacy.release import PrivateRun
from incrowd.runs.round_loop import Checkpoints, DurableSilo
from incrowd.runs.run import Run
from incrowd.settings import Descent
from tests.algorithms.silos import CLASSES, FEATURES, MODEL, RECORDS, paying, plan, records, zeros
from tests.runs.small import silos_of
from tests.runs.test_silo_run import small as small_silos

HELD = records()
DESCENT = Descent(learning_rate=0.5)


class Wrong(nn.Module):
    """A module of somebody's own, whose programming errors show when it is used."""

    def __init__(self, error: str, *, features: int = FEATURES, outputs: int = CLASSES) -> None:
        super().__init__()
        self.error = error
        self.layer = nn.Linear(features, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs, or the error."""
        tried = len(x) == 2 or not torch.is_grad_enabled()  # when an engine is made, before anybody rehearses
        if self.error == "in training" and self.training and not tried:
            raise KeyError("a layer that is not there")
        if self.error == "of one record" and len(x) != 2:
            raise IndexError("two records are what it was tried with")
        outputs: Tensor = self.layer(x.flatten(1))
        return outputs


def own(module: nn.Module) -> BatchedRecords:
    return BatchedRecords(Model(module), HELD, DESCENT)


@dataclass
class Odd:
    """An engine that does not keep to what an engine is for."""

    shape: int = MODEL.size
    calls: int = 2
    value: float = 0.0
    size: int = MODEL.size
    held: int = RECORDS
    third_party: str = ""

    def rehearsal(self, records: int) -> "Odd":
        """The same."""
        return self

    def train(self, weights: ArrayLike | Tensor, training: Any, *, noise: StepNoise, batches: Any) -> Trained:
        """Not what was asked for."""
        for _ in range(self.calls):
            noise(torch.zeros(MODEL.size, dtype=torch.float64))
        return Trained(weights=torch.full((self.shape,), self.value), dropped=0)


ENGINES: dict[str, Callable[[], Any]] = {
    "own, training": lambda: own(Wrong("in training")),
    "own, one record": lambda: own(Wrong("of one record")),
    "other weights": lambda: Odd(shape=MODEL.size + 1),
    "a step too few": lambda: Odd(calls=1),
    "a step too many": lambda: Odd(calls=3),
    "not finite": lambda: Odd(value=float("nan")),
}


def silo_of(engine: Any, *, physical_batch: int = 256, **changes: Any) -> Silo:
    run = paying(plan(**changes), randomness=SystemRandomness())
    return Silo("north", run, engine=engine, physical_batch=physical_batch)


def start_of(engine: Any) -> Floats:
    return np.zeros(engine.size)


class Unrehearsed(Silo):
    """The broken twin: it pays first, and sees then whether anything works."""

    def rehearse(self, weights: Floats) -> None:
        """Try nothing."""


@pytest.mark.parametrize("name", ENGINES)
def test_a_programming_error_costs_nothing(name: str) -> None:
    engine = ENGINES[name]()
    its = silo_of(engine)
    with pytest.raises(RehearsalFailed, match=r"north tried .* Nothing was spent and no record was touched") as refused:
        its.answer(0, start_of(engine))
    assert refused.value.__cause__ is not None
    assert its.epsilon == 0
    assert its.run.rounds == frozenset()


@pytest.mark.parametrize("name", ["own, training", "a step too many"])
def test_without_a_rehearsal_the_same_error_costs_a_round(name: str) -> None:
    engine = ENGINES[name]()
    its = silo_of(engine)
    twin = Unrehearsed("north", its.run, engine=engine)
    with pytest.raises((KeyError, BudgetExceeded)):
        twin.answer(0, start_of(engine))
    assert twin.epsilon > 0.4 * its.run.plan.budget.epsilon


def test_what_a_rehearsal_says_is_the_same_for_all_records() -> None:
    said = set()
    for seed in (1, 2):
        module = nn.Sequential(Wrong("in training"))
        engine = BatchedRecords(Model(module), records(seed), DESCENT)
        with pytest.raises(RehearsalFailed) as refused:
            silo_of(engine).answer(0, start_of(engine))
        said.add(str(refused.value))
    assert len(said) == 1
    empty = Records(features=HELD.features[:0], labels=HELD.labels[:0])
    assert len(empty.made_up(3)) == 3
    assert HELD.made_up(2).features.abs().sum() == 0


def test_a_rehearsal_happens_once_and_touches_no_record_or_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = BatchedRecords(MODEL, HELD, DESCENT)
    asked: list[int] = []
    real = type(engine).rehearsal

    def counted(self: Any, records: int) -> Any:
        asked.append(records)
        return real(self, records)

    monkeypatch.setattr(type(engine), "rehearsal", counted)
    its = silo_of(engine, physical_batch=7)
    drawn = torch.get_rng_state()
    touched, take = list[bool](), Records.take

    def watched(self: Records, rows: Tensor) -> Any:
        touched.append(self is engine.records)
        return take(self, rows)

    monkeypatch.setattr(Records, "take", watched)
    its.rehearse(start_of(engine))
    assert touched
    assert not any(touched)
    assert its.epsilon == 0
    assert torch.equal(torch.get_rng_state(), drawn)
    for number in range(3):
        assert its.answer(number, zeros()).absence is None
    assert any(touched)  # the control: a round does
    assert asked == [0, 1, 8]


WEIGHTS: list[Floats] = [
    np.zeros(MODEL.size + 1),
    np.zeros((1, MODEL.size)),
    np.full(MODEL.size, np.nan),
    np.full(MODEL.size, np.inf),
]


@pytest.mark.parametrize("weights", WEIGHTS, ids=["too many", "two dimensions", "nan", "inf"])
@pytest.mark.parametrize("earlier", [0, 2])
def test_weights_that_cannot_be_trained_cost_nothing_in_any_round(weights: Floats, earlier: int) -> None:
    its = silo_of(BatchedRecords(MODEL, HELD, DESCENT))
    for number in range(earlier):
        its.answer(number, zeros())
    before = its.epsilon
    with pytest.raises(ConfigError, match=r"weights = .*nothing was spent"):
        its.answer(earlier, weights)
    assert its.epsilon == before


def test_records_that_come_or_go_while_a_silo_runs_cost_nothing() -> None:
    engine = Odd()
    its = silo_of(engine)
    engine.held = 3 * RECORDS
    with pytest.raises(ConfigError, match="records = 40: the records of north are fewer or more"):
        its.answer(0, zeros())
    assert its.epsilon == 0


def _no_room(path: Path, *_content: bytes) -> None:
    raise OSError(28, os.strerror(28), str(path))


@pytest.mark.parametrize("kind", ["in the way", "full"])
def test_an_answer_that_could_not_be_kept_is_not_paid_for(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = folder / "sent"
    if kind == "full":
        monkeypatch.setattr(_files, "write", _no_room)
    else:
        sent.write_text("not a folder")
    its = silo_of(BatchedRecords(MODEL, HELD, DESCENT))
    with pytest.raises(DataError, match=r"cannot keep what the silo would send .*nothing was spent"):
        DurableSilo(its, Checkpoints(sent)).answer(0, zeros())
    assert its.epsilon == 0


def test_room_for_an_answer_is_given_back(folder: Path) -> None:
    its = silo_of(BatchedRecords(MODEL, HELD, DESCENT))
    outbox = DurableSilo(its, Checkpoints(folder / "sent"))
    for number in range(plan().rounds + 1):  # the last is not planned
        outbox.answer(number, zeros())
    assert {path.suffix for path in (folder / "sent").iterdir()} == {".safetensors"}


def test_no_silo_of_a_run_pays_before_all_of_them_are_ready(folder: Path) -> None:
    run = Run.create(small_silos(), folder / "run")
    federation = silos_of(run)
    wrong = Model(nn.Sequential(Wrong("in training", features=64, outputs=10)))
    broken = BatchedRecords(wrong, federation.records[1], DESCENT)
    run.work = replace(federation, engines=(federation.engines[0], broken))
    with pytest.raises(RehearsalFailed, match=r"silo-2 tried"):
        run.train()
    assert [verify(path)["events"] for path in sorted(folder.glob("run/silos/*/ledger.sqlite"))] == [0, 0]
    silos = [federation.silo(0, its, label="control") for its in (memory(),)]
    twin = silos_of(run).silo(1, memory(), label="control")
    with pytest.raises(RehearsalFailed):  # the control: each when its turn comes, and the first has paid by then
        [its.answer(0, np.zeros(federation.model.size)) for its in (*silos, twin)]
    assert silos[0].epsilon > 0


def memory() -> Ledger:
    return Ledger.in_memory(budget=Budget(epsilon=8, delta=1e-5), relation=Relation.ADD_OR_REMOVE_ONE)


def clients_run(module: nn.Module, data: Clients, ledger: Ledger) -> FedAvg[ClientCohort]:
    schedule = constant(rounds=2, cohort=data.clients)
    config = PlanConfig(members=data.clients, schedule=schedule, sampling=Everyone, clip=NormalisedClip())
    budget = Budget(epsilon=8.0, delta=1e-3)
    model = Model(module)
    engine = CohortEngine(model, ClientTensors.of(data), Local(learning_rate=0.1, batch_size=4))
    private = PrivateRun(config.calibrate(budget), ledger=ledger, randomness=SystemRandomness(), size=model.size)
    return FedAvg(ClientCohort(engine=engine, private=private), server=ServerOptimizer())


def test_clients_contribute_before_the_round_is_charged(data: Clients) -> None:
    ledger = Ledger.in_memory(budget=Budget(epsilon=8.0, delta=1e-3), relation=Relation.REPLACE_SPECIAL)
    run = clients_run(Wrong("in training"), data, ledger)
    with pytest.raises((KeyError, IncrowdError)):
        run.apply(run.init())
    assert ledger.spent().epsilon == 0
    ledger = Ledger.in_memory(budget=ledger.budget, relation=ledger.relation)
    good = clients_run(nn.Linear(FEATURES, CLASSES), data, ledger)
    state, _ = good.apply(good.init())
    assert state.round == 1


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"noise_by": "party"},
        {"clip": QuantileClip(clip_norm=1.0, bit_noise=1e12)},
    ],
    ids=["central", "local", "bits"],
)
def test_noise_of_clients_that_fits_no_grid_is_refused_before_it_is_paid_for(
    data: Clients, how: dict[str, Any], checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiplier = 2.0 if "clip" in how else 1e12
    steps = Schedule((Step(rounds=2, cohort=data.clients, noise_multiplier=multiplier),))
    config = PlanConfig(members=data.clients, schedule=steps, sampling=Everyone, **how)
    its = config.plan(Budget(epsilon=8.0, delta=1e-3))
    if not checked:  # the control: a round that pays first
        monkeypatch.setattr(RoundNoise, "check", lambda *_args, **_sizes: None)
    ledger = Ledger.in_memory(budget=its.budget, relation=its.relation)
    private = PrivateRun(its, ledger=ledger, randomness=SystemRandomness(), size=MODEL.size)
    engine = CohortEngine(MODEL, ClientTensors.of(data), Local(learning_rate=0.1, batch_size=4))
    run = FedAvg(ClientCohort(engine=engine, private=private), server=ServerOptimizer())
    with pytest.raises(ConfigError, match="noise scale"):
        run.apply(run.init())
    assert any(entry.kind == "charge" for entry in ledger.entries()) is not checked
