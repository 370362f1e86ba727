"""Federations of hours, in run folders: one that was stopped, however it ended, goes on when it is asked for again."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from incrowd import Budget, ConfigError, Plan
from incrowd.data import Split
from incrowd.learning import LocalTraining
from incrowd.runs.client_work import ClientWork
from incrowd.runs.clip_config import MedianSection
from incrowd.runs.config import Config, Local, MlpSection, Private, RunOptions, ServerOptimizer
from incrowd.runs.data_config import MnistData
from incrowd.runs.database import Database
from incrowd.runs.folder import DATABASE
from incrowd.runs.progress import progress
from incrowd.runs.run import Run
from papers.geyer.measure import PER_CLIENT, Curve, Measured, Point, followed, shaped
from papers.geyer.paper import HIDDEN, PaperSetup


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Where the run folders are, one for each federation, and where the data is.

    Guarantee: the federation is the one that `papers.geyer.learn` runs in memory; a folder that holds
    another one is refused.
    """

    folder: Path
    data: Path

    def measure(
        self, setup: PaperSetup, split: Split, *, clients: int, budget: Budget, seeds: Sequence[int]
    ) -> Measured:
        """See `papers.geyer.measure`; the seconds are those since it went on."""
        plan = setup.promise(clients, budget)

        def follow(seed: int) -> Curve:
            return self.curve(setup, plan, seed=seed)

        claim, weights = setup.stated(plan, budget), shaped(setup.model, split).size
        return followed(follow, plan=plan, claim=claim, weights=weights, seeds=seeds)

    def curve(self, setup: PaperSetup, plan: Plan, *, seed: int) -> Curve:
        """The accuracy over the rounds, from wherever the run stands to its end."""
        run = self._run(setup, plan, seed)
        run.train([progress(sys.stderr)])
        database = Database(run.folder / DATABASE)
        try:
            records = database.rounds()
        finally:
            database.close()
        return [Point(round=one.round + 1, accuracy=one.accuracy) for one in records if one.accuracy is not None]

    def place(self, plan: Plan, seed: int) -> Path:
        """The run folder of a federation."""
        return self.folder / f"{plan.config.clients}-clients-{plan.rounds}-rounds-seed-{seed}"

    def _run(self, setup: PaperSetup, plan: Plan, seed: int) -> Run:
        folder = self.place(plan, seed)
        wanted, schedule = self.config(setup, plan, seed), plan.config.schedule
        if not (folder / DATABASE).is_file():
            return Run.create(wanted, folder, schedule=schedule)
        run = Run.open(folder)
        found = run.work.plan if isinstance(run.work, ClientWork) else None
        if run.config != wanted or not isinstance(found, Plan) or found.config.schedule != schedule:
            remedy = "it holds a run with other settings: name another folder, or delete it"
            raise ConfigError(field="runs", value=str(folder), remedy=remedy)
        return run

    def config(self, setup: PaperSetup, plan: Plan, seed: int) -> Config:
        """The federation as the settings of a run; the schedule goes beside them."""
        rounds = plan.config.schedule.rounds
        return Config(
            data=MnistData(
                folder=str(self.data.resolve()),
                clients=plan.config.clients,
                partition="shards",
                per_client=PER_CLIENT,
                seed=seed,
            ),
            model=MlpSection(hidden=HIDDEN, bias=False, start=setup.start),
            local=_local(setup.local),
            privacy=Private(
                epsilon=plan.budget.epsilon,
                delta=plan.budget.delta,
                rounds=rounds,
                cohort=plan.config.schedule.steps[-1].cohort,
                sampling="fixed",
                clip=MedianSection(kind="median"),
            ),
            server=ServerOptimizer(),
            run=RunOptions(randomness="seeded", seed=seed, report_every=max(1, rounds // 80)),
        )


def _local(local: LocalTraining) -> Local:
    names = ("learning_rate", "epochs", "batch_size", "batches", "momentum", "weight_decay", "proximal", "shuffle")
    return Local(**{name: getattr(local, name) for name in names})
