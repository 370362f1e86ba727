"""Silos that share noise: what each way to protect records leaves of the accuracy, at one price for every record.

| `noise_by` | who adds the noise                                     | who is trusted                 |
| ---------- | ------------------------------------------------------ | ------------------------------ |
| `pooled`   | one server, which has all records                      | the server                     |
| `parties`  | all silos, a share each; 1, or a third, may collude    | all silos but the colluders    |
| `party`    | each silo, on its own steps (DP-SGD, then averaging)   | each silo, by its own records  |
| `alone`    | one silo by itself                                     | nobody else                    |

All learn a linear model on fixed features with full batches. The number of steps, the learning rate and the clip are
chosen for each way alike, on training examples that no silo has, which count as public; test examples choose nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness import checks
from harness.pictures import axes, dress
from harness.seeds import Entry, Say, repeated, silent, summary
from incrowd import (
    Budget,
    ConfigError,
    DataError,
    FixedClip,
    Ledger,
    PlanConfig,
    PrivateRun,
    SeededRandomness,
    ServerOptimizer,
    constant,
)
from incrowd.algorithms import FedAvg, RecordCohort, RecordRun, Silo, SiloCohort, score
from incrowd.data import Clients, Examples, Split, iid
from incrowd.learning import BatchedRecords, ClientTensors, Descent, Model, Records, linear
from incrowd.learning.features import OrientedEnergies, UnitNorm, WithConstant, compose, transform
from incrowd.types import Randomness
from papers.fedn.schedule import DELTA

Numbers = NDArray[np.float64]
Setting = tuple[int, float, float]
"""Steps, rate and clip."""

STEPS, RATES, CLIPS = (10, 20, 40), (2.0, 8.0, 32.0), (1.0, 0.3)
"""The settings that are tried. A rate is the learning rate times the clip, so that a clip alone changes no length."""

AVERAGED = 10
"""The rounds after which silos that noise their own steps average their weights."""

CHOOSING, BEST, PUBLIC = (1000, 1001, 1002), 6, 5_000
"""The seeds of the records on which settings are chosen, the number of settings that stay after the first of them, and
the number of public examples that score them.
"""


@dataclass(frozen=True, kw_only=True)
class SharedSilos:
    """What to measure, and on which data: so many silos of so many records each.

    Edge cases: too few training examples for the silos and the choice of settings, or no test examples: `DataError`.
    """

    split: Split
    sizes: Sequence[tuple[int, int]] = ((20, 100), (5, 500))
    epsilons: Sequence[float] = (1.0, 0.3)
    seeds: int = 3
    cache: Path | None = None
    say: Say = field(default=silent, repr=False)

    def __post_init__(self) -> None:
        checks.count(seeds=self.seeds)
        for epsilon in self.epsilons:
            checks.positive(epsilon=epsilon)
        for silos, records in self.sizes:
            checks.count(silos=silos, records=records)
            if silos < 3:
                raise ConfigError(field="silos", value=silos, remedy="give at least 3, of which a third may collude")
            if silos * records + self._public > len(self.split.train):
                raise DataError(f"{silos} silos of {records} records and {self._public} public ones are too many")
        if self.split.test is None or self.split.train.classes is None:
            raise DataError("accuracies are asked for: give test examples, and labels that are classes")

    def rows(self) -> list[Entry]:
        """One entry for each size, epsilon and way to add noise."""
        found = []
        for (silos, records), epsilon in product(self.sizes, self.epsilons):
            for noise_by, colluders in (
                ("pooled", 0),
                ("parties", 1),
                ("parties", -(-silos // 3)),
                ("party", 0),
                ("alone", 0),
            ):
                case = _Case(silos=silos, records=records, epsilon=epsilon, noise_by=noise_by, colluders=colluders)
                found.append(self._row(case))
        return found

    def _row(self, case: "_Case") -> Entry:
        chosen = self._chosen(case)
        accuracies = repeated(lambda seed: self._accuracy(case, chosen, seed=seed), seeds=self.seeds).runs
        row = {
            "data": self.split.name,
            "silos": case.silos,
            "records": case.records,
            "epsilon": case.epsilon,
            "delta": DELTA,
            "noise_by": case.noise_by,
            "colluders": case.colluders or None,
            "steps": chosen[0],
            "learning_rate": chosen[1] / chosen[2],
            "clip_norm": chosen[2],
            **summary(accuracies),
            "accuracies": list(accuracies),
        }
        self.say(f"{case.name}, {case.silos} x {case.records}, epsilon {case.epsilon:g}: {row['accuracy']:.4f}")
        return row

    def _chosen(self, case: "_Case") -> Setting:
        """The best setting of the grid: the best ones of the first seed are compared over all seeds."""
        found = {setting: [self._accuracy(case, setting, seed=CHOOSING[0])] for setting in product(STEPS, RATES, CLIPS)}
        best = sorted(found, key=found.__getitem__)[-BEST:]
        for setting in best:
            found[setting] += [self._accuracy(case, setting, seed=seed) for seed in CHOOSING[1:]]
        return max(best, key=lambda setting: sum(found[setting]))

    def _accuracy(self, case: "_Case", setting: Setting, *, seed: int) -> float:
        """The accuracy on test examples, or, for the seeds that choose, on public ones."""
        train, test = self._seen
        order = np.random.default_rng([seed, case.silos, case.records]).permutation(len(train))
        used = order[: case.records * (1 if case.noise_by == "alone" else case.silos)]
        scored = train.some(order[-self._public :]) if seed in CHOOSING else test
        model, weights = case.learned(train.some(np.sort(used)), setting, randomness=SeededRandomness(seed))
        return score(model, weights, scored).accuracy or 0.0

    @cached_property
    def _seen(self) -> tuple[Examples, Examples]:
        """Training and test examples as the model sees them."""
        fixed = compose(OrientedEnergies(), UnitNorm(centred=True), WithConstant(value=0.3))
        train = transform(fixed, self.split.train, cache=self.cache)
        assert self.split.test is not None  # noqa: S101 - it was checked
        return train, transform(fixed, self.split.test, cache=self.cache)

    @property
    def _public(self) -> int:
        return min(PUBLIC, len(self.split.train) // 4)


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One federation: who takes part, what it may cost, and who adds the noise."""

    silos: int
    records: int
    epsilon: float
    noise_by: str
    colluders: int

    @property
    def name(self) -> str:
        return f"{self.noise_by}, {self.colluders} may collude" if self.colluders else self.noise_by

    def learned(self, examples: Examples, setting: Setting, *, randomness: Randomness) -> tuple[Model, Numbers]:
        """The weights after so many steps in all."""
        steps, rate, clip = setting
        several = self.noise_by in ("parties", "party")
        silos = self.silos if several else 1
        data = Clients(examples=examples, partition=iid(examples.labels, clients=silos, randomness=randomness))
        model = linear(math.prod(examples.shape), examples.classes or 1, bias=False)
        tensors = ClientTensors.of(data)
        parts = [Records.of(tensors, place) for place in range(silos)]
        if self.noise_by == "party":
            return model, self._averaged(model, parts, setting, randomness)
        members = sum(map(len, parts))
        config = PlanConfig(
            members=members,
            schedule=constant(rounds=steps, cohort=float(members)),
            unit="record",
            noise_by="parties" if self.noise_by == "parties" else "server",
            parties=silos if self.noise_by == "parties" else None,
            colluders=self.colluders if self.noise_by == "parties" else None,
            clip=FixedClip(clip_norm=clip),
        )
        plan = config.calibrate(self._budget)
        ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
        run = PrivateRun(plan, ledger=ledger, randomness=randomness, size=model.size)
        engines = [BatchedRecords(model, each, Descent()) for each in parts]
        cohort = RecordCohort(
            engines=engines, records=[len(each) for each in parts], private=run, model=engines[0].model
        )
        return model, _run(FedAvg(cohort, server=_server(rate / clip), init_scale=0.0), steps)

    def _averaged(self, model: Model, parts: Sequence[Records], setting: Setting, randomness: Randomness) -> Numbers:
        steps, rate, clip = setting
        rounds = min(AVERAGED, steps)
        asks = []
        for place, records in enumerate(parts):
            plan = PlanConfig.of_records(
                records=len(records), rounds=rounds, clip_norm=clip, epochs=steps / rounds
            ).calibrate(self._budget)
            ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
            paid = RecordRun(plan, ledger=ledger, randomness=randomness, place=place)
            engine = BatchedRecords(model, records, Descent(learning_rate=rate / clip))
            asks.append(Silo(f"silo {place + 1}", paid, engine=engine, physical_batch=1024).answer)
        cohort = SiloCohort(asks=asks, model=model, rounds=rounds, randomness=randomness)
        return _run(FedAvg(cohort, server=_server(1.0), init_scale=0.0), rounds)

    @property
    def _budget(self) -> Budget:
        return Budget(epsilon=self.epsilon, delta=DELTA)


def _server(rate: float) -> ServerOptimizer:
    return ServerOptimizer(learning_rate=rate, average="tail")


def _run(federation: FedAvg[RecordCohort] | FedAvg[SiloCohort], rounds: int) -> Numbers:
    state = federation.init()
    for _ in range(rounds):
        state, _ = federation.apply(state)
    return state.published


def shown(rows: Sequence[Entry]) -> list[Entry]:
    """A line for each size and epsilon, a column for each way."""
    lines: dict[tuple[str, int, int, float], Entry] = {}
    for row in rows:
        size = row["data"], row["silos"], row["records"], row["epsilon"]
        line = lines.setdefault(size, {"data": size[0], "silos": f"{size[1]} x {size[2]}", "epsilon": size[3]})
        name = (
            row["noise_by"] if row["colluders"] is None else "shared, 1" if row["colluders"] == 1 else "shared, a third"
        )
        line[name] = row["accuracy"]
    return list(lines.values())


def plot_shared(path: Path, rows: Sequence[Entry]) -> None:
    """A group of bars for each size and epsilon, a bar for each way."""
    lines = shown(rows)
    names = [name for name in lines[0] if name not in ("data", "silos", "epsilon")]
    with axes(path, height=4.5) as (panel,):
        for place, name in enumerate(names):
            at = [number + 0.16 * (place - 2) for number in range(len(lines))]
            panel.bar(at, [line[name] for line in lines], width=0.15, label=name)
        panel.set_xticks(
            range(len(lines)), [f"{line['data']} {line['silos']}, epsilon {line['epsilon']:g}" for line in lines]
        )
        dress(panel, "silos x records", "accuracy on the test examples", title="SIMULATION: seeded noise", loc="best")
