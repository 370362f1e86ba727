"""Code of users: noise comes against a receipt, once, and what could have been known to fail fails before the charge.

Whoever wants noise for nothing, or twice, gets none. Measured before there were rehearsals: a silo's own module with a
programming error in it cost 6.07 of 8, which are gone for good.
"""

import ast
import contextlib
import copy
import os
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent
from numpy.typing import ArrayLike
from torch import Tensor, nn

import incrowd
from incrowd import Local, ServerOptimizer, _files
from incrowd._random import Floats, SeededRandomness, SystemRandomness
from incrowd.algorithms import ClientCohort, FedAvg, Silo
from incrowd.data import Clients
from incrowd.errors import BudgetExceeded, ConfigError, DataError, IncrowdError, RehearsalFailed
from incrowd.learning import ClientTensors, CohortEngine, Model
from incrowd.learning.dpsgd.engine import BatchedRecords, Records, StepNoise, Trained
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.clipping import NormalisedClip
from incrowd.privacy.mechanism.grid import GaussianNoise
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Everyone, constant
from incrowd.privacy.release import PrivateRun
from incrowd.runs.round_loop import Checkpoints, DurableSilo
from incrowd.runs.run import Run
from incrowd.settings import Descent
from tests.algorithms.silos import CLASSES, FEATURES, MODEL, RECORDS, paying, plan, records, zeros
from tests.privacy.receipts import paid, roomy
from tests.runs.small import silos_of
from tests.runs.test_silo_run import small as small_silos

pytestmark = pytest.mark.watched

NOISE = GaussianNoise(noise_multiplier=2.0, clip_norm=1.0)
PACKAGE = Path(incrowd.__file__).parent
TOTAL = np.zeros(3)

# Who may do what is named here, and nobody else does it.
DOORS = {
    "SEAL": {"privacy/ledger/tally.py", "privacy/ledger/ledger.py"},
    "sample_noise": {f"privacy/mechanism/{name}.py" for name in ("grid", "correlated", "shared")},
    "Receipt(": {"privacy/ledger/ledger.py"},
}


def doors(text: str) -> set[str]:
    """What of `DOORS` a module opens."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.id == "SEAL":
            found.add("SEAL")
        if "sample_noise" in (getattr(node, "attr", None), getattr(node, "id", None)):
            found.add("sample_noise")
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Receipt", "receipt.Receipt"):
            found.add("Receipt(")
    return found


@pytest.mark.slow
def test_only_the_ledger_makes_receipts_and_only_noises_draw_on_the_grid() -> None:
    opened: dict[str, set[str]] = {door: set() for door in DOORS}
    for path in PACKAGE.rglob("*.py"):
        for door in doors(path.read_text(encoding="utf-8")):
            opened[door].add(path.relative_to(PACKAGE).as_posix())
    assert opened == DOORS


def test_control_a_second_door_is_seen() -> None:
    for call in ("grid.sample_noise(1)", "sample_noise(1)"):
        assert doors(f"value = {call}") == {"sample_noise"}
    assert doors("from x import SEAL, Receipt\nmine = Receipt(1, seal=SEAL)") == {"SEAL", "Receipt("}


def test_a_receipt_cannot_be_made_up() -> None:
    entry = paid(NOISE).entry
    with pytest.raises(ConfigError, match=r"only Ledger\.charge makes receipts"):
        Receipt(entry, randomness=SystemRandomness(), pays_for=[(NOISE, 9)], seal=object())


def test_noise_is_drawn_once_and_no_other_noise() -> None:
    receipt = paid(NOISE)
    less = GaussianNoise(noise_multiplier=0.01, clip_norm=1.0)
    with pytest.raises(ConfigError, match="not what this receipt was paid for"):
        less.add(TOTAL, receipt=receipt, at=("noise",), contributions_bound=1)
    NOISE.add(TOTAL, receipt=receipt, at=("noise",), contributions_bound=1)
    with pytest.raises(ConfigError, match="it was drawn already"):
        NOISE.add(TOTAL, receipt=receipt, at=("noise",), contributions_bound=1)
    with pytest.raises(BudgetExceeded, match="all noise that was paid for"):
        NOISE.add(TOTAL, receipt=receipt, at=("noise", 1), contributions_bound=1)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda receipt: pickle.loads(pickle.dumps(receipt))])  # noqa: S301 - it never gets so far
def test_a_receipt_is_not_copied(copied: object) -> None:
    with pytest.raises(ConfigError, match="a receipt is not copied"):
        copied(paid(NOISE))  # type: ignore[operator]  # they are functions


def test_a_thread_that_comes_in_the_middle_of_a_draw_does_not_get_the_same_noise() -> None:
    drawn: list[object] = []
    others: list[threading.Thread] = []

    class Slow:
        """A noise; while it is compared with what was asked for, another thread asks for the same draw."""

        def __eq__(self, asked: object) -> bool:
            if not others:
                others.append(threading.Thread(target=draw))
                others[0].start()
                others[0].join(timeout=1)  # it has to wait for this draw to end
            return True

        __hash__ = None  # type: ignore[assignment]  # nobody looks it up

    receipt = paid(Slow(), times=2)

    def draw() -> None:
        with contextlib.suppress(ConfigError):
            drawn.append(receipt.noise_stream(Slow(), "noise"))

    draw()
    others[0].join()
    assert len(drawn) == 1


def test_two_equal_noises_are_two_draws() -> None:
    receipt = roomy().charge(GaussianDpEvent(0.5), pays_for=[(NOISE, 1), (GaussianNoise(**vars(NOISE)), 1)])
    receipt.noise_stream(NOISE, "one")
    receipt.noise_stream(NOISE, "two")
    with pytest.raises(BudgetExceeded):
        receipt.noise_stream(NOISE, "three")


def test_what_is_charged_in_earnest_is_not_drawn_from_a_seed() -> None:
    ledger = roomy()
    earnest, seeded = (
        ledger.charge(GaussianDpEvent(9.0)),
        ledger.charge(GaussianDpEvent(9.0), randomness=SeededRandomness(4)),
    )
    assert (earnest.simulated, seeded.simulated) == (False, True)
    noted = [entry.content()["randomness"] for entry in ledger.entries() if entry.kind == "charge"]
    assert noted == ["system", SeededRandomness(4).source]
    assert ledger.charges() == (2, 1)


def test_a_source_of_one_s_own_is_not_noted_as_the_system_s() -> None:
    class Mine(SeededRandomness):
        source = "system"

    with pytest.raises(ConfigError, match="only SystemRandomness may be called so"):
        roomy().charge(GaussianDpEvent(9.0), randomness=Mine(1))


class TestKeys:
    """A key is charged once; the same seeded noise again is no second release, anything else is."""

    def a_ledger(self) -> Ledger:
        return Ledger.in_memory(budget=Budget(epsilon=3.0, delta=1e-5), relation=Relation.ADD_OR_REMOVE_ONE)

    @pytest.mark.parametrize(
        ("source", "event"),
        [
            (SeededRandomness(2), GaussianDpEvent(9.0)),
            (SystemRandomness(), GaussianDpEvent(9.0)),
            (SeededRandomness(1), GaussianDpEvent(8.0)),
        ],
        ids=["another seed", "in earnest", "another event"],
    )
    def test_anything_else_would_cost_again(self, source: SeededRandomness, event: GaussianDpEvent) -> None:
        ledger = self.a_ledger()
        ledger.charge(GaussianDpEvent(9.0), key="a", randomness=SeededRandomness(1))
        with pytest.raises(ConfigError, match="it is paid for already"):
            ledger.charge(event, key="a", randomness=source)
        assert ledger.charges() == (1, 1)

    def test_in_earnest_nothing_is_repeated(self) -> None:
        ledger = self.a_ledger()
        ledger.charge(GaussianDpEvent(9.0), key="a")
        with pytest.raises(ConfigError, match="fresh noise would cost again"):
            ledger.charge(GaussianDpEvent(9.0), key="a")

    def test_a_key_that_another_process_charges_meanwhile_is_not_charged_twice(self, tmp_path: Path) -> None:
        path, budget = tmp_path / "ledger", Budget(epsilon=3.0, delta=1e-5)
        with (
            Ledger.open(path, budget=budget, relation=Relation.ADD_OR_REMOVE_ONE, data_identity="x") as ours,
            Ledger.open(path) as theirs,
        ):
            theirs.reserve([(GaussianDpEvent(20.0), 1)], label="run")
            theirs.charge(GaussianDpEvent(20.0), key="a", reservation="run")
            with pytest.raises(ConfigError, match="it is paid for already"):
                ours.charge(GaussianDpEvent(9.0), key="a")
            assert ours.charges() == (1, 0)
            assert ours.verify().charged == 1


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


def test_a_rehearsal_happens_once_and_touches_no_record_or_stream(monkeypatch: pytest.MonkeyPatch) -> None:
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
