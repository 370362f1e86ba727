"""Table 1 as measured here: every row, recipe and budget asked for, as plain data."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import checks
from harness.seeds import Entry, Say, repeated, silent, summary
from incrowd import Budget, ConfigError
from incrowd.data import Split
from papers.geyer.kept import Kept
from papers.geyer.measure import EPSILON, PLAIN_ROW, ROWS, Measured, Row, check_rows, measure
from papers.geyer.paper import PaperSetup
from papers.geyer.plain import Plain, learn_plainly
from papers.geyer.recipes import Case, Recipe, named
from papers.geyer.smallest import smallest
from papers.shared import simulated_statement

TUNED = (
    "the recipe's settings were chosen on training examples declared public, some constants of its features in earlier "
    "research that looked at test accuracies: neither choice is in epsilon"
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """What to measure, and on which data. Federations of the recipe `paper` may be kept in run folders.

    Edge cases: a number of clients that is no row of the paper, an unknown recipe, an epsilon or a number of seeds that
    is not positive: refused before anything is computed.
    """

    split: Split
    rows: Sequence[int] = tuple(ROWS)
    recipes: Sequence[str] = ("best", "general")
    epsilons: Sequence[float] = (EPSILON,)
    seeds: int = 5
    cache: Path | None = None
    kept: Kept | None = None
    plain: Plain = field(default_factory=Plain)
    say: Say = field(default=silent, repr=False)

    def __post_init__(self) -> None:
        checks.count(seeds=self.seeds)
        check_rows(self.rows)
        for name in self.recipes:
            named(name)
        for epsilon in self.epsilons:
            checks.positive(epsilon=epsilon)

    def entries(self) -> list[Entry]:
        """One entry for each recipe, row and epsilon, and with the recipe `paper` the row without privacy."""
        entries = [
            self._entry(named(name), ROWS[clients], epsilon)
            for name in self.recipes
            for clients in self.rows
            for epsilon in self.epsilons
        ]
        if "paper" in self.recipes and PLAIN_ROW.clients in self.rows:
            entries.append(self._plain_entry())
        return entries

    def smallest(self) -> list[Entry]:
        """For each recipe and row the smallest epsilon that reaches the paper's accuracy at epsilon 8.

        Edge cases: the recipe `paper` is refused, because its epsilon does not hold.
        """
        for name in self.recipes:
            if name.startswith("paper"):
                raise ConfigError(field="recipe", value=name, remedy="its epsilon does not hold: give another one")
        return [self._smallest(named(name), ROWS[clients]) for name in self.recipes for clients in self.rows]

    def measured(self, recipe: Recipe, row: Row, epsilon: float, *, seeds: int | None = None) -> Measured:
        """What a recipe reaches on a row."""
        budget = Budget(epsilon=epsilon, delta=row.delta)
        setup = recipe.setup(Case(clients=row.clients, budget=budget, shape=self.split.train.shape))
        self.say(f"{recipe.name}, {row.clients} clients, epsilon {epsilon:g}")
        split = setup.prepared(self.split, cache=self.cache)
        several = range(self.seeds if seeds is None else seeds)
        if isinstance(setup, PaperSetup) and self.kept is not None:
            return self.kept.measure(setup, split, clients=row.clients, budget=budget, seeds=several)
        return measure(setup, split, clients=row.clients, budget=budget, seeds=several, say=self.say)

    def _entry(self, recipe: Recipe, row: Row, epsilon: float) -> Entry:
        return entry(recipe, row, self.measured(recipe, row, epsilon))

    def _plain_entry(self) -> Entry:
        self.say(f"paper, {PLAIN_ROW.clients} clients, no privacy: {self.plain.rounds} rounds")

        def learn(seed: int) -> float:
            return list(learn_plainly(self.plain, self.split, seed=seed))[-1].accuracy

        repeats = repeated(learn, seeds=self.seeds, told="accuracy {:.4f}".format, say=self.say)
        weights = self.plain.model(self.split).size
        return plain_entry(self.plain, repeats.runs, weights=weights, seconds=repeats.seconds)

    def _smallest(self, recipe: Recipe, row: Row) -> Entry:
        return entry(recipe, row, smallest(lambda epsilon: self.measured(recipe, row, epsilon), row.accuracy))


def entry(recipe: Recipe, row: Row, measured: Measured) -> Entry:
    """What was measured, beside what the paper states, with the guarantee in full."""
    plan = measured.plan
    first = plan.round(0).sampler
    statement = simulated_statement(plan)
    return {
        "clients": row.clients,
        "recipe": recipe.name,
        "prior": recipe.prior,
        "delta": row.delta,
        **_counted(measured.accuracies, measured.seconds),
        "rounds": plan.rounds,
        "communications": plan.config.schedule.communications,
        "epsilon_honest": plan.price.epsilon,
        "accountant_honest": plan.price.accountant,
        "noise_multiplier": plan.noise_multiplier,
        "sampling": type(first).__name__,
        "sampling_prob": first.expected_cohort / row.clients,
        "weights": measured.weights,
        **_paper(row),
        "statement": replace(statement, caveats=(*statement.caveats, TUNED)).to_json(),
        **measured.claim,
    }


def plain_entry(plain: Plain, accuracies: Sequence[float], *, weights: int, seconds: float) -> Entry:
    """The row without privacy: nothing is promised, so what would say how much is None."""
    nothing = ("epsilon", "budget_epsilon", "delta", "accountant", "epsilon_honest", "accountant_honest", "statement")
    return {
        "clients": plain.clients,
        "recipe": "paper",
        "prior": named("paper").prior,
        **dict.fromkeys(nothing),
        **_counted(accuracies, seconds),
        "rounds": plain.rounds,
        "communications": float(plain.rounds * plain.clients),
        "noise_multiplier": 0.0,
        "sampling": "Everyone",
        "sampling_prob": 1.0,
        "weights": weights,
        **_paper(PLAIN_ROW),
        "warnings": ["nothing is private here"],
    }


def _counted(accuracies: Sequence[float], seconds: float) -> Entry:
    return {**summary(accuracies), "accuracies": list(accuracies), "seeds": len(accuracies), "seconds": seconds}


def _paper(row: Row) -> Entry:
    return {"paper_accuracy": row.accuracy, "paper_rounds": row.rounds, "paper_communications": row.communications}
