"""Federations of hours, in run folders: one that was stopped, however it ended, goes on when it is asked for again."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from incrowd import Budget, Federation, Plan
from incrowd.data import Split
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
        result = self.federation(setup, plan, seed).train(self.place(plan, seed))
        return [Point(round=one.round + 1, accuracy=one.accuracy) for one in result.rounds if one.accuracy is not None]

    def place(self, plan: Plan, seed: int) -> Path:
        """The run folder of a federation."""
        return self.folder / f"{plan.config.members}-clients-{plan.rounds}-rounds-seed-{seed}"

    def federation(self, setup: PaperSetup, plan: Plan, seed: int) -> Federation:
        """The federation as settings spell it; the schedule goes beside them."""
        rounds, clients = plan.config.schedule.rounds, plan.config.members
        settings = {
            "data": {
                "name": "mnist",
                "folder": str(self.data.resolve()),
                "clients": clients,
                "partition": "shards",
                "per_client": PER_CLIENT,
                "seed": seed,
            },
            "model": {"kind": "mlp", "hidden": HIDDEN, "bias": False, "init_scale": setup.init_scale},
            "local": setup.local.model_dump(),
            "privacy": {
                "epsilon": plan.budget.epsilon,
                "delta": plan.budget.delta,
                "rounds": rounds,
                "cohort": plan.config.schedule.steps[-1].cohort,
                "sampling": "fixed",
                "clip": {"kind": "median"},
            },
            "run": {"randomness": "seeded", "seed": seed, "report_every": max(1, rounds // 80)},
        }
        return Federation.from_tables(settings).scheduled(plan.config.schedule)
