"""A run in a folder, from its settings to its result; `incrowd.runs.folder` lists the files."""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors.torch import load, save
from torch import Tensor, nn

from incrowd import __version__, _files
from incrowd._random import Floats
from incrowd.algorithms.clients import ClientCohort, Trainers
from incrowd.algorithms.fedavg import State
from incrowd.algorithms.metrics import evaluate, score
from incrowd.algorithms.silos import AskAll, AskShared, AskSums
from incrowd.data.clients import Clients
from incrowd.data.examples import Examples, Inputs
from incrowd.data.reading import read_once
from incrowd.errors import ConfigError
from incrowd.learning.inputs import chosen, meant
from incrowd.learning.losses import Loss
from incrowd.learning.models import Model
from incrowd.learning.modules import trainable
from incrowd.privacy.plan.sampling import Schedule, Step
from incrowd.privacy.release import PrivateRound
from incrowd.runs.advice import judged
from incrowd.runs.config import Config, read_back
from incrowd.runs.data_config import Parties
from incrowd.runs.folder import (
    DATABASE,
    LEDGER,
    MODEL,
    SILOS,
    START,
    Record,
    Summary,
    check_unused,
    database_in,
    payer_in,
    settings_in,
    write_payer,
    write_results,
)
from incrowd.runs.ledgers import RunLedger
from incrowd.runs.round_loop import RoundLoop, Session
from incrowd.runs.sources import NOTHING, Given, enrolled
from incrowd.runs.trackers import trackers
from incrowd.runs.work import ClientWork, Work, work_of
from incrowd.types import Tracker

if TYPE_CHECKING:
    from incrowd.runs.evaluation import EvaluationConfig

_THIRD_PARTY = "training loop (not tried)"

Rounds = Generator[tuple[Session, State], tuple[State, Record], Summary]
"""The rounds of a run: see `Run.rounds`."""


class Run:
    """One private federation, of whole clients or of records in silos, from its settings to its result, in a folder.

    Guarantee: every release is in the ledger, whenever the process ends, and no ledger exceeds its budget. A seeded run
    that was cut off and resumed ends with the same weights, bit for bit, as one that never stopped. Under the operating
    system's randomness a round that was paid for and then cut off is lost, not repeated; each silo loses only such
    rounds of its ledger.

    All runs on the same private data are charged to one ledger (`incrowd.runs.ledgers`), which needs room for the whole
    plan. A silo whose budget is spent sends nothing more, and the others go on.
    """

    def __init__(self, folder: Path, work: Work) -> None:
        self.folder = folder
        self.work = work

    @classmethod
    @read_once()
    def create(
        cls,
        config: Config,
        folder: Path | str,
        *,
        given: Given = NOTHING,
        schedule: Schedule | None = None,
        data: Clients | None = None,
        ledger: RunLedger | None = None,
        agree: Callable[[Work], None] | None = None,
    ) -> "Run":
        """A new run. Nothing is written before config and data are checked, and nothing is spent.

        `given` are objects of the program, for settings that name none. A `schedule` and `data` are as in `work_of`,
        and the schedule is checked against the budget. A `ledger` is for runs of a search. `agree` is called before a
        ledger is looked for, and may raise.
        """
        folder = Path(folder).resolve()
        check_unused(folder, DATABASE, *([LEDGER, f"{LEDGER}.witness", SILOS] if ledger is None else []))
        if data is not None and ledger is None and not (data.public and getattr(config.data, "public", True)):
            remedy = "leave them out: which data a ledger is charged for is seen when they are loaded"
            raise ConfigError(field="data", value=type(data).__name__, remedy=remedy)
        work = work_of(config, given, schedule=schedule, data=data)
        trackers(config.run.trackers, folder, simulated=work.randomness.simulated)
        work.try_out()
        if agree is not None:
            agree(work)
        run = cls(folder, work.find_ledgers(folder) if ledger is None else replace(work, ledgers=(ledger,)))
        _files.folder(folder)
        write_payer(folder, run.work.ledgers_to_json())
        if not run.work.model.fresh:  # the function that makes it anew may draw other weights
            _files.write(folder / START, save(run.work.model.state_dict(run.work.model.weights)))
        with database_in(folder) as database:
            database.write_settings(run.settings)
        return run

    @classmethod
    @read_once()
    def open(cls, folder: Path | str, *, given: Given = NOTHING, data: Clients | None = None) -> "Run":
        """The run in a folder, with its settings, plan, first weights and chunk; `given` and `data` as in `create`."""
        folder = Path(folder).resolve()
        settings, payer = settings_in(folder), payer_in(folder)
        config, began = _settings_of_version(settings), settings["clients"]
        if isinstance(config.data, Parties) and (found := len(enrolled(config.data))) != began:
            # Parties keep their places for as long as a run lasts, present or absent.
            remedy = f"the run began with {began}: put back who is missing, as NAME.gone; for new ones begin another"
            raise ConfigError(field="data.enrolled", value=found, remedy=remedy)
        work = reopened(settings, config, folder, given=given, data=data).with_ledgers(payer)
        if data is None:
            work.check_same()
        if settings["module"] != _form(work.model):
            remedy = f"the run began with another: {settings['module']}"
            raise ConfigError(field="module", value=_form(work.model), remedy=remedy)
        return cls(folder, work)

    def asking(self, **ways: Trainers | AskAll | AskSums | AskShared) -> "Run":
        """The same run, whose participants answer elsewhere: `trainers` train whole clients; silos answer all
        `together`, or send `sums` of their records, or `shared` ones, which are masked (`incrowd.algorithms.silos`).
        """
        for way in ways:
            if not hasattr(self.work, way):
                remedy = f"participants of this unit and noise_by have no {way}"
                raise ConfigError(field="privacy.unit", value=self.config.privacy.unit, remedy=remedy)
        work = replace(self.work, **ways)  # type: ignore[arg-type]  # fields that this kind of work has
        work.try_out()
        return Run(self.folder, work)

    @property
    def config(self) -> Config:
        """The settings of the run."""
        return self.work.config

    @property
    def settings(self) -> Summary:
        """The settings of the run, stated and calibrated."""
        return {
            "config": self.config.model_dump(mode="json"),
            "version": __version__,
            "rounds": self.work.rounds,
            "clients": self.work.data.clients,
            "module": _form(self.work.model),
            "columns": list(self.work.data.columns),
            **self.work.settings(),
        }

    def train(self, watchers: Sequence[Tracker] = ()) -> Summary:
        """Train to the end, from wherever the run stands, and write the results; a run that is over returns them."""
        with closing(self.rounds(watchers)) as rounds:
            try:
                session, state = next(rounds)
                while True:
                    session, state = rounds.send(session.step(state))
            except StopIteration as over:
                summary: Summary = over.value
                return summary

    def rounds(self, watchers: Sequence[Tracker] = ()) -> Rounds:
        """The rounds that are left, for a loop of the caller: see `train`.

        Each round is yielded as the session and the state before it; the state after it, and its record, are sent back.

        Guarantee: the row of a round is written before its checkpoint. The last state is kept and the watchers are
        told, also after an error or a stop by the user.
        """
        if isinstance(self.config.data, Parties) and not self.work.asks_others:
            remedy = "the data are with the parties: `incrowd flower serve` asks them, with the same settings"
            raise ConfigError(field="data.name", value="parties", remedy=remedy)
        with (
            RoundLoop.begin(self.folder, self.config.run, rounds=self.work.rounds) as loop,
            self.work.open(self.folder) as session,
        ):
            return (yield from self._rounds(loop, session, watchers))

    def _rounds(self, loop: RoundLoop, session: Session, watchers: Sequence[Tracker]) -> Rounds:
        work, wanted, state = self.work, self.config.run, session.restored(loop)
        if state.round < work.rounds:
            session.rehearse(state)
        if (test := work.data.test) is not None:  # failures to measure come before a round is paid for
            one = test.some(slice(1))
            measured(work.model, state.published, one, loss=work.loss)
            evaluate(work.model, state.published, one, loss=work.loss)
        watchers = [*trackers(wanted.trackers, self.folder, simulated=wanted.seed is not None), *watchers]
        summary: Summary | None = None
        for watcher in watchers:
            watcher.start(self.settings, [record for record in loop.database.rounds() if record.round < state.round])
        try:
            while state.round < work.rounds:
                state, record = yield session, state
                if state.round % wanted.report_every == 0 or state.round == work.rounds:
                    found = measured(work.model, state.published, test, loss=work.loss)
                    record = replace(record, accuracy=found["accuracy"], loss=found["loss"])
                loop.database.add(record)
                if state.round % wanted.checkpoint_every == 0:
                    loop.write_state(state)
                for watcher in watchers:
                    watcher.round(record)
            loop.finish(state)
            summary = self._finished(state, loop.database.rounds(), session)
        finally:
            loop.write_state(state)
            for watcher in watchers:
                watcher.end(summary)
        return summary

    def evaluate(self, wanted: "EvaluationConfig") -> Summary:
        """Measure the released model on the clients' own examples: noised, and charged to the ledger of the data like
        one more round.
        """
        from incrowd.runs.evaluation import Evaluation

        if isinstance(self.config.data, Parties):
            remedy = "the examples are with the parties: ask them with `incrowd evaluate DIR --keys KEYS`"
            raise ConfigError(field="data.name", value="parties", remedy=remedy)
        with Evaluation.begin(self.folder, self.work, wanted) as evaluation:
            return evaluation.release(evaluation.here)

    def _finished(self, state: State, records: Sequence[Record], session: Session) -> Summary:
        """Write the results."""
        work, test = self.work, self.work.data.test
        _files.write(self.folder / MODEL, save(work.model.state_dict(state.published)))
        metrics = None if test is None else evaluate(work.model, state.published, test, loss=work.loss)
        verdict = None
        if metrics is not None and test is not None:
            verdict = judged(metrics, examples=len(test), settings=self.config.model_dump(mode="json"))
        claims = session.claims(state)  # which may ask parties, so their latest figures follow
        summary = {
            **measured(work.model, state.published, test, loss=work.loss),
            "metrics": metrics,
            "verdict": verdict,
            **work.data.describe(),
            **session.facts(records),
            "simulated": work.randomness.simulated,
        }
        return write_results(self.folder, claims, summary)


def measured(model: Model, weights: Floats, test: Examples | None, *, loss: Loss) -> dict[str, float | None]:
    """Accuracy and loss of weights on the test set that the server holds."""
    if test is None:
        return {"accuracy": None, "loss": None}
    found = score(model, weights, test, loss=loss)
    return {"accuracy": found.accuracy, "loss": found.loss if math.isfinite(found.loss) else None}


def free_folder(parent: Path) -> Path:
    """The first of parent/run-1, parent/run-2, ... that does not exist."""
    places = (parent / f"run-{number}" for number in count(1))
    return next(place for place in places if not place.exists())


def reopened(
    settings: Summary, config: Config, folder: Path, *, given: Given = NOTHING, data: Clients | None = None
) -> Work:
    """The work of a run that goes on: with its schedule, its chunk, and the first state of your module."""
    start, steps = folder / START, settings.get("schedule")
    return work_of(
        config,
        replace(given, start=load(start.read_bytes()) if start.exists() else None),
        schedule=None if steps is None else Schedule(tuple(Step(**step) for step in steps)),
        chunk=settings.get("chunk"),
        data=data,
    )


def _settings_of_version(settings: Summary) -> Config:
    """The settings that another version may have written, which knows other keys."""
    try:
        return read_back(settings["config"])
    except ConfigError as error:
        made = settings.get("version")
        if made == __version__:
            raise
        remedy = f"the run was made with another version, and this is {__version__}: go on with that one ({error})"
        raise ConfigError(field="version", value=made, remedy=remedy) from error


def _form(model: Model) -> str:
    """The form in which torch shows a module."""
    return " ".join(repr(model.module).split())


@dataclass(eq=False)
class OwnRound:
    """One round of a training loop: the present clients of its `cohort`, and the `weights` to start from.

    Guarantee: each client's update is clipped, and enters once. The cohort and its updates are private: they are for
    the training on this machine.
    """

    number: int
    cohort: tuple[int, ...] = field(repr=False)
    weights: Floats = field(repr=False)
    _work: ClientWork = field(repr=False)
    _open: PrivateRound = field(repr=False)
    submitted: bool = field(default=False, init=False, repr=False)

    def module(self) -> nn.Module:
        """A copy of the federation's module with the round's weights, for one client to train."""
        return self._work.model.with_weights(self.weights)

    def examples(self, client: int) -> tuple[Inputs, Tensor]:
        """The features of a client of the cohort, as the model sees them, and its labels."""
        if client not in self.cohort:
            raise ConfigError(field="client", value=client, remedy="give one of this round's cohort")
        data = self._work.engine.data
        rows = torch.as_tensor(data.examples(client).astype(np.int64))
        features = meant(chosen(data.features, rows), scale=data.scale, offset=data.offset)
        return features, data.labels.index_select(0, rows)

    def submit(self, updates: Mapping[int, ArrayLike | nn.Module]) -> None:
        """Hand over what clients learnt: a trained module, or the difference to the round's weights as one vector.

        Clients that are left out contribute nothing; the denominator stays the plan's.
        """
        if self.submitted:
            raise ConfigError(field="round", value=self.number, remedy="its updates are submitted: go on to the next")
        vectors = {client: self._vector(update) for client, update in updates.items()}
        for client, vector in vectors.items():
            if client not in self.cohort or vector.shape != self.weights.shape:
                remedy = f"give clients of the cohort, and {self.weights.size} numbers for each"
                raise ConfigError(field="updates", value=f"{client}: {vector.shape}", remedy=remedy)
        for client, vector in vectors.items():
            self._open.add(vector[None], clients=[client])
        self.submitted = True

    def _vector(self, update: ArrayLike | nn.Module) -> Floats:
        if not isinstance(update, nn.Module):
            return np.asarray(update, dtype=np.float64)
        trained = torch.cat([one.detach().reshape(-1) for _, one in trainable(update)])
        moved: Floats = trained.double().cpu().numpy() - self.weights
        return moved


class OwnLoop(AbstractContextManager["OwnLoop"]):
    """The rounds of a run, for a loop that trains clients itself: see `incrowd.Federation.session`."""

    def __init__(self, run: Run, watchers: Sequence[Tracker] = ()) -> None:
        work = run.work
        if not isinstance(work, ClientWork) or work.asks_others:
            remedy = 'a loop of your own trains whole clients on this machine: use privacy.unit = "client"'
            raise ConfigError(field="privacy.unit", value=run.config.privacy.unit, remedy=remedy)
        if work.engine.size != work.model.size:
            remedy = "your loop takes its place: leave it out"
            raise ConfigError(field="local.algorithm", value=work.config.local.algorithm, remedy=remedy)
        self.run = run
        self._work = work
        self._rounds: Rounds = run.rounds(watchers)

    def __exit__(self, *_: object) -> None:
        """Keep the latest state, from which the same loop goes on."""
        self._rounds.close()

    def __iter__(self) -> Iterator[OwnRound]:
        """The rounds that are left."""
        with suppress(StopIteration):
            session, state = next(self._rounds)
            if session.algorithm.cohort.queries and state.round == 0:
                session, state = self._rounds.send(session.step(state))
            while True:
                opened = self._opened(session, state)
                yield opened
                if not opened.submitted:
                    remedy = "submit its updates before the next round"
                    raise ConfigError(field="round", value=opened.number, remedy=remedy)
                answers = session.algorithm.cohort.released(opened._open)
                session, state = self._rounds.send(session.recorded(*session.algorithm.applied(state, answers)))

    def _opened(self, session: Session, state: State) -> OwnRound:
        cohort: ClientCohort = session.algorithm.cohort
        cohort.private.name_third_party(_THIRD_PARTY)
        clients = cohort.present(cohort.private.cohort(state.round), number=state.round)
        return OwnRound(
            number=state.round,
            cohort=tuple(map(int, clients)),
            weights=state.weights.astype(np.float32).astype(np.float64),
            _work=self._work,
            _open=cohort.private.round(state.round, carry=state.carry),
        )
