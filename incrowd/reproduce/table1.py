"""Table 1 as measured here: every row, recipe and budget asked for, as plain data."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from incrowd import _validate
from incrowd.data import Split, load_mnist
from incrowd.errors import ConfigError
from incrowd.privacy.accounting import Budget
from incrowd.reproduce.geyer import EPSILON, ROWS, Measured, Row, Say, measure, silent
from incrowd.reproduce.recipes import Case, Recipe, named
from incrowd.reproduce.smallest import smallest

TUNED = "the recipe's settings were chosen on training examples declared public; that choice is not in epsilon"

Entry = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Table:
    """What to measure, and on which data.

    Edge cases: a number of clients that is no row of the paper, an unknown recipe, an epsilon or a number of seeds that
    is not positive: refused before anything is computed.
    """

    split: Split
    rows: Sequence[int] = tuple(ROWS)
    recipes: Sequence[str] = ("best", "general")
    epsilons: Sequence[float] = (EPSILON,)
    seeds: int = 5
    cache: Path | None = None
    say: Say = field(default=silent, repr=False)

    def __post_init__(self) -> None:
        _validate.count(seeds=self.seeds)
        for clients in self.rows:
            if clients not in ROWS:
                raise ConfigError(field="rows", value=clients, remedy=f"give some of {', '.join(map(str, ROWS))}")
        for name in self.recipes:
            named(name)
        for epsilon in self.epsilons:
            _validate.positive(epsilon=epsilon)

    def entries(self) -> list[Entry]:
        """One entry for each recipe, row and epsilon."""
        return [
            self._entry(named(name), ROWS[clients], epsilon)
            for name in self.recipes
            for clients in self.rows
            for epsilon in self.epsilons
        ]

    def smallest(self) -> list[Entry]:
        """For each recipe and row the smallest epsilon that reaches the paper's accuracy at epsilon 8."""
        return [self._smallest(named(name), ROWS[clients]) for name in self.recipes for clients in self.rows]

    def measured(self, recipe: Recipe, row: Row, epsilon: float, *, seeds: int | None = None) -> Measured:
        """What a recipe reaches on a row."""
        budget = Budget(epsilon=epsilon, delta=row.delta)
        setup = recipe.setup(Case(clients=row.clients, budget=budget, shape=self.split.train.shape))
        self.say(f"{recipe.name}, {row.clients} clients, epsilon {epsilon:g}: {setup.rounds} rounds")
        split = setup.prepared(self.split, cache=self.cache)
        several = range(self.seeds if seeds is None else seeds)
        return measure(setup, split, clients=row.clients, budget=budget, seeds=several, say=self.say)

    def _entry(self, recipe: Recipe, row: Row, epsilon: float) -> Entry:
        return entry(recipe, row, self.measured(recipe, row, epsilon))

    def _smallest(self, recipe: Recipe, row: Row) -> Entry:
        return entry(recipe, row, smallest(lambda epsilon: self.measured(recipe, row, epsilon), row.accuracy))


def entry(recipe: Recipe, row: Row, measured: Measured) -> Entry:
    """What was measured, beside what the paper states, with the guarantee in full."""
    plan = measured.plan
    first = plan.round(0).sampler
    statement = plan.statement(simulated=True)
    return {
        "clients": row.clients,
        "recipe": recipe.name,
        "prior": recipe.prior,
        "epsilon": plan.price.epsilon,
        "budget_epsilon": plan.budget.epsilon,
        "delta": row.delta,
        "accuracy": measured.accuracy,
        "accuracy_sd": measured.spread,
        "accuracies": list(measured.accuracies),
        "seeds": len(measured.accuracies),
        "rounds": plan.rounds,
        "communications": plan.config.schedule.communications,
        "accountant": plan.price.accountant,
        "noise_multiplier": plan.noise_multiplier,
        "sampling": type(first).__name__,
        "sampling_prob": first.expected_cohort / row.clients,
        "weights": measured.weights,
        "seconds": measured.seconds,
        "paper_accuracy": row.accuracy,
        "paper_rounds": row.rounds,
        "paper_communications": row.communications,
        "statement": replace(statement, caveats=(*statement.caveats, TUNED)).to_json(),
    }


def load(folder: Path) -> Split:
    """MNIST, or another set in its four files, from a folder or from mnist/ in it."""
    inner = folder / "mnist"
    return load_mnist(inner if inner.is_dir() else folder)
