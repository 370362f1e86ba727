"""Record-level private training: private examples a second, ours and Opacus', beside training that is not private."""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from contest.lean import flat, parts, settle
from contest.opacus_modules import visible
from contest.peak import describe, one_processor
from contest.report import RecordReport, RecordResult
from contest.works import CLIP_NORM, LEARNING_RATE, NOISE_MULTIPLIER, RANDOMNESS, WORKS, Task
from harness import checks
from harness.arrays import Floats
from incrowd import Budget, ConfigError, IncrowdError, Ledger, Poisson, Relation, SystemRandomness
from incrowd.learning import BatchedRecords, Descent, Execution, Records, StepNoise, ieee, one_thread, poisson_batches
from incrowd.privacy.account import compose
from incrowd.privacy.mechanism import RecordTraining

MODELS = ("mlp", "mlp600", "cnn", "transformer")
PEERS = ("opacus",)
MODES = {"opacus": "hooks", "opacus-functorch": "functorch", "opacus-ew": "ew", "opacus-ghost": "ghost"}
_PER_RECORD = 1 / 8  # of the steps of a round: all of Opacus' modes but ghost clipping form every record's gradient
_RECORDS = 60_000 * 20  # that take part in the steps of a run of usual length
_ALIKE = 1e-4  # how far two clipped sums may be apart, relative to ours; rounding makes about 1e-6
_BATCHES = (
    3  # of so many one has to be alike: in some a record is at a kink of the network, and rounding takes it across
)


class Competitor(Protocol):
    """Something that trains on records."""

    @property
    def name(self) -> str:
        """What results call it."""
        ...

    def clipped_sum(self, number: int) -> Floats | None:
        """The sum of a round's first batch's clipped gradients at the first weights; None if nothing is clipped."""
        ...

    def steps(self, number: int) -> tuple[int, float]:
        """Take some steps; how many records took part, and how many seconds that took: see `RecordTask.clock`."""
        ...


@dataclass(frozen=True, kw_only=True)
class RecordTask:
    """One network at one batch size, on all images as the records of one silo."""

    task: Task
    steps: int = 40

    @property
    def name(self) -> str:
        """How results call it."""
        return f"records {self.task.name}"

    def clock(self) -> float:
        """Seconds: of this process on a processor, where others compute, too; of the day on an accelerator."""
        if self.task.device == "cpu":
            return time.process_time()
        settle(self.task.device)
        return time.perf_counter()

    def training(self, steps: int) -> RecordTraining:
        """The settings of so many steps."""
        batch = self.task.batch_size
        return RecordTraining(
            steps=steps,
            sampling_prob=min(1.0, batch / len(self.task.tensors[1])),
            expected_batch=batch,
            clip_norm=CLIP_NORM,
            noise_multiplier=NOISE_MULTIPLIER,
        )

    def batches(self, number: int) -> list[Tensor]:
        """The batches of a round."""
        stream = RANDOMNESS.stream("batches", number)
        drawn = poisson_batches(len(self.task.tensors[1]), self.training(self.steps), batches=stream)
        return [torch.from_numpy(batch) for batch in drawn]


class Ours:
    """Our engine in whole rounds: batches drawn, bytes made floats, exact sums, noise, steps."""

    def __init__(self, task: RecordTask, *, earnest: bool = False) -> None:
        self.name = "incrowd exact noise" if earnest else "incrowd"
        self.task = task
        self.earnest = earnest
        images = task.task.data.examples
        features, labels = images.as_tensors()
        records = Records(features=features, labels=labels, scale=images.scale, offset=images.offset)
        self.engine = BatchedRecords(
            task.task.work.model(),
            records,
            Descent(learning_rate=LEARNING_RATE),
            execution=Execution(contributions=_RECORDS, device=task.task.device),
        )
        self.weights = task.task.start

    def clipped_sum(self, number: int) -> Floats:
        """See `Competitor.clipped_sum`."""
        seen: list[Floats] = []

        def remember(total: Tensor) -> Tensor:
            seen.append(total.cpu().numpy().copy())
            return total

        stream = RANDOMNESS.stream("batches", number)
        self.engine.train(self.task.task.start, self.task.training(1), noise=remember, batches=stream)
        return seen[0]

    def steps(self, number: int) -> tuple[int, float]:
        """See `Competitor.steps`."""
        records = sum(map(len, self.task.batches(number)))
        begin = self.task.clock()
        training = self.task.training(self.task.steps)
        stream = RANDOMNESS.stream("batches", number)
        noise = self._noise(training, number)
        self.weights = self.engine.train(self.weights, training, noise=noise, batches=stream).weights
        return records, self.task.clock() - begin

    def _noise(self, training: RecordTraining, number: int) -> StepNoise:
        if self.earnest:
            budget = Budget(epsilon=1e6, delta=1e-6)
            ledger = Ledger.in_memory(budget=budget, relation=Relation.ADD_OR_REMOVE_ONE)
            event = Poisson(clients=len(self.task.task.tensors[1]), cohort=self.task.task.batch_size)
            receipt = ledger.charge(
                compose([(event.event(training.noise_multiplier), training.steps)]),
                pays_for=((training.noise, training.steps),),
                randomness=SystemRandomness(),
            )
            at = (("noise", number, step) for step in count())

            def hide(total: Tensor) -> Tensor:
                noised = training.noised(total.double().cpu().numpy(), receipt=receipt, at=next(at))
                return torch.from_numpy(noised).to(total.device)

            return hide
        generator = torch.Generator(self.engine.records.device).manual_seed(number)
        deviation = training.noise_multiplier * training.sensitivity

        def simulate(total: Tensor) -> Tensor:
            noise = torch.empty_like(total, dtype=torch.float32).normal_(generator=generator)
            return noise.mul_(deviation).add_(total)

        return simulate


@dataclass(eq=False)
class Loop:
    """A user's loop in torch: index lists into images as floats, drawn before the clock starts."""

    name: str
    task: RecordTask
    share: float = 1.0  # of the steps of a round that it takes
    module: Any = field(init=False)
    optimizer: Any = field(init=False)
    criterion: Any = field(init=False)

    def __post_init__(self) -> None:
        self.features, self.labels = self.task.task.tensors
        self.module, self.parameters = self._module()
        self.module.to(self.task.task.device)
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, parts(self.task.task.start, self.parameters))
        self.optimizer = torch.optim.SGD(self.parameters, lr=LEARNING_RATE)
        self.criterion = nn.CrossEntropyLoss()

    def _module(self) -> tuple[nn.Module, list[Tensor]]:
        """The module, and its parameters in the order in which ours has them."""
        module = self.task.task.work.module()
        return module, list(module.parameters())

    def clipped_sum(self, number: int) -> Floats | None:
        """See `Competitor.clipped_sum`."""
        return None

    def steps(self, number: int) -> tuple[int, float]:
        """See `Competitor.steps`."""
        batches = self.task.batches(number)[: max(1, int(self.share * self.task.steps))]
        begin = self.task.clock()
        for rows in batches:
            self.step(rows)
        return sum(map(len, batches)), self.task.clock() - begin

    def step(self, rows: Tensor) -> None:
        """One step."""
        self.optimizer.zero_grad()
        loss = self.criterion(self.module(self.features[rows]), self.labels[rows])
        loss.backward()
        self.optimizer.step()


class Opacus(Loop):
    """The same loop after Opacus' `make_private`, in one of its modes."""

    def __init__(self, name: str, task: RecordTask, *, mode: str, share: float = 1.0) -> None:
        super().__init__(name, task, share)
        from opacus import PrivacyEngine
        from torch.utils.data import DataLoader, TensorDataset

        options: dict[str, Any] = {
            "module": self.module,
            "optimizer": self.optimizer,
            "data_loader": DataLoader(TensorDataset(self.features, self.labels), batch_size=task.task.batch_size),
            "noise_multiplier": NOISE_MULTIPLIER,
            "max_grad_norm": CLIP_NORM,
            "poisson_sampling": False,
            "grad_sample_mode": mode,
        }
        if mode == "ghost":
            made = PrivacyEngine().make_private(criterion=self.criterion, **options)
            self.module, self.optimizer, self.criterion, _ = made
        else:
            self.module, self.optimizer, _ = PrivacyEngine().make_private(**options)

    def _module(self) -> tuple[nn.Module, list[Tensor]]:
        return visible(self.task.task.work.module())

    def clipped_sum(self, number: int) -> Floats:
        """See `Competitor.clipped_sum`."""
        before = [parameter.detach().clone() for parameter in self.parameters]
        self.optimizer.noise_multiplier = 0.0
        self.step(self.task.batches(number)[0])
        self.optimizer.noise_multiplier = NOISE_MULTIPLIER
        total: Floats = flat([p.grad for p in self.parameters if p.grad is not None]) * self.task.task.batch_size
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, before)
        return total


Factory = Callable[[RecordTask], Competitor]


@dataclass(frozen=True, kw_only=True)
class RecordContest:
    """What to measure: both networks at every batch size, against these, for so many rounds."""

    batch_sizes: Sequence[int] = (100,)
    against: Sequence[str] = PEERS
    folder: Path | None = None
    rounds: int = 5
    steps: int = 40
    models: Sequence[str] = field(default_factory=lambda: MODELS)
    device: str = "cpu"

    def __post_init__(self) -> None:
        checks.count(rounds=self.rounds, steps=self.steps)
        Execution(device=self.device)  # which refuses one that is not there
        if not self.batch_sizes:
            raise ConfigError(field="batch", value=self.batch_sizes, remedy="name at least one")
        for name in self.against:
            if name not in PEERS:
                raise ConfigError(field="against", value=name, remedy=f"at records, give {', '.join(PEERS)}")

    @property
    def skipped(self) -> dict[str, str]:
        """Who cannot take part here, and why."""
        return {name: "not installed: pip install opacus" for name in self.against if not _installed(name)}

    def run(self, say: Callable[[str], object] = lambda _: None) -> RecordReport:
        """Measure; `say` hears of the progress."""
        machine = describe(self.device) | {"data": "synthetic" if self.folder is None else "MNIST"}
        others: dict[str, Factory] = {
            "incrowd exact noise": partial(Ours, earnest=True),
            "plain": partial(Loop, "plain"),
        }
        if "opacus" in self.against and "opacus" not in self.skipped:
            for name, mode in MODES.items():
                others[name] = partial(_opacus, name, mode=mode, share=1.0 if mode == "ghost" else _PER_RECORD)
        results: list[RecordResult] = []
        for model in self.models:
            for size in self.batch_sizes:
                one = Task(work=WORKS[model], batch_size=size, folder=self.folder, device=self.device)
                task = RecordTask(task=one, steps=self.steps)
                say(f"{task.name}: incrowd, {', '.join(others)}")
                results += match(task, others, rounds=self.rounds)
        return RecordReport(results=results, skipped=self.skipped, machine=machine)


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # it is known to be missing
        return False


def _opacus(name: str, task: RecordTask, *, mode: str, share: float = 1.0) -> Competitor:
    return Opacus(name, task, mode=mode, share=share)


def match(task: RecordTask, others: dict[str, Factory], *, rounds: int) -> list[RecordResult]:
    """One task: check that all clip alike, which also warms them up; then let them take turns.

    Edge cases: an error that names whoever computes something else than we do, before anything is timed.
    """
    where = task.task.device
    with one_thread(), one_processor() if where == "cpu" else nullcontext(), ieee(where), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Secure RNG turned off")
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        warnings.filterwarnings("ignore", message="In CPU autocast")  # torch's expanded weights ask for a state of it
        players: list[Competitor] = [Ours(task), *(make(task) for make in others.values())]
        differences = _differences(task, players)
        for player in players:
            player.steps(0)
        rates: list[list[float]] = [[] for _ in players]
        for number in range(1, rounds + 1):
            for player, measured in zip(players, rates, strict=True):
                records, seconds = player.steps(number)
                measured.append(records / seconds)
    return [
        RecordResult.of(task.task, player.name, rates=measured, difference=difference)
        for player, measured, difference in zip(players, rates, differences, strict=True)
    ]


def _differences(task: RecordTask, players: Sequence[Competitor]) -> list[float | None]:
    """How far everyone's clipped sum is from ours, relative to it; None for who does not clip."""
    differences: list[float | None] = []
    for player in players:
        apart: list[float] = []
        while (not apart or not apart[-1] <= _ALIKE) and len(apart) < _BATCHES:
            expected, found = players[0].clipped_sum(len(apart)), player.clipped_sum(len(apart))
            if expected is None or found is None:
                break
            apart.append(float(np.linalg.norm(found - expected) / np.linalg.norm(expected)))
        if apart and not apart[-1] <= _ALIKE:
            raise IncrowdError(
                f"{player.name} does other work than incrowd at {task.name}: their clipped sums differ by "
                f"{apart[-1]:.2g}; nothing was timed"
            )
        differences.append(apart[-1] if apart else None)
    return differences
