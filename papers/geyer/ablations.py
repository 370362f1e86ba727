"""What each ingredient of a recipe is worth: leave it out, or exchange it, and measure again.

This happens on training examples alone: the last of them are declared public and stand for test examples, the others
are divided among clients. The recipes were tuned there, too, but for constants that earlier research chose by test
accuracies.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from incrowd import Budget, BudgetExceeded, FixedClip, Local, Schedule
from incrowd.data import Examples, Split
from incrowd.learning import linear
from incrowd.learning.features import FeatureMap, OrientedEnergies, UnitNorm, compose
from papers.geyer.handwriting import GlyphMetric, MomentNormalisation
from papers.geyer.measure import ROWS, AnySetup, Measured, measure
from papers.geyer.paper import PaperSetup, within
from papers.geyer.recipes import Case, named
from papers.geyer.setup import STEEPEST, Setup
from papers.geyer.table1 import Table

HELD_OUT = 10_000
CLIP_NORMS = (0.02, 0.1)
RATES = (0.25, 1.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A recipe with one thing changed; of several setups the best counts, which is how they were tuned."""

    name: str
    setups: tuple[AnySetup, ...]


def held_out(split: Split) -> Split:
    """The training examples without the last 10,000 (of a small set, a sixth), and these in place of test examples."""
    public = min(HELD_OUT, len(split.train) // 6)
    return Split(
        name=split.name,
        train=_rows(split.train, slice(0, len(split.train) - public)),
        test=_rows(split.train, slice(len(split.train) - public, None)),
    )


def without_public(split: Split) -> Split:
    """The same without the training examples declared public: no client holds what settings were chosen on."""
    return Split(name=split.name, train=held_out(split).train, test=split.test)


def ablations(table: Table) -> list[dict[str, Any]]:
    """One entry for each recipe, row and variant, the first of which is the recipe itself."""
    public = replace(table, split=held_out(table.split))
    return [
        entry
        for name in table.recipes
        for clients in table.rows
        for epsilon in table.epsilons
        for entry in _entries(public, name, clients, epsilon)
    ]


def _entries(table: Table, name: str, clients: int, epsilon: float) -> Iterator[dict[str, Any]]:
    budget = Budget(epsilon=epsilon, delta=ROWS[clients].delta)
    case = Case(clients=clients, budget=budget, shape=table.split.train.shape)
    full: float | None = None
    for variant in variants(named(name).setup(case), case):
        table.say(f"{name}, {clients} clients: {variant.name}")
        best = max((_measured(table, setup, case) for setup in variant.setups), key=lambda one: one.accuracy)
        full = best.accuracy if full is None else full
        yield {
            "clients": clients,
            "recipe": name,
            "budget_epsilon": epsilon,
            "variant": variant.name,
            "accuracy": best.accuracy,
            "accuracy_sd": best.spread,
            "difference": best.accuracy - full,
            "seeds": len(best.accuracies),
        }


def variants(setup: AnySetup, case: Case) -> list[Variant]:
    """The setup as it is, and what it could be without each of its ingredients."""
    itself = Variant(name="the recipe", setups=(setup,))
    if isinstance(setup, PaperSetup):
        return [itself, *_other_constants(setup), _fewer_clients(setup, case)]
    return [itself, *_other_features(setup, case), *_other_steps(setup)]


def _other_constants(setup: PaperSetup) -> Iterator[Variant]:
    """The neighbours on the grid in which the paper's constants were looked for."""
    local = setup.local
    batches = local.batches or 1
    for name, other in (
        (f"E = {2 * local.epochs}", local.replaced(epochs=2 * local.epochs)),
        (f"B = {batches // 2}", local.replaced(batches=batches // 2)),
        (f"B = {2 * batches}", local.replaced(batches=2 * batches)),
        (f"rate {local.learning_rate / 2:g}", local.replaced(learning_rate=local.learning_rate / 2)),
        (f"rate {local.learning_rate * 2:g}", local.replaced(learning_rate=local.learning_rate * 2)),
    ):
        yield Variant(name=name, setups=(replace(setup, local=other),))
    for init_scale in (1.0, math.sqrt(3), math.sqrt(6)):
        if init_scale != setup.init_scale:
            variance = f"{init_scale**2 / 3:.2g} / inputs"
            yield Variant(name=f"first weights of variance {variance}", setups=(replace(setup, init_scale=init_scale),))
    for factor in (0.5, 2.0):
        louder = setup.schedule.scaled(factor)
        noise = f"noise {louder.steps[-1].noise_multiplier:g}"
        yield Variant(name=noise, setups=(replace(setup, schedule=louder),))


def _other_features(setup: Setup, case: Case) -> Iterator[Variant]:
    if setup.features is None:
        return
    moments, energies, centred = MomentNormalisation(), OrientedEnergies(), UnitNorm(centred=True)
    several: dict[str, FeatureMap] = {"pixels": UnitNorm(), "oriented energies": energies}
    if isinstance(setup.features, GlyphMetric):
        several |= {
            "pixels, moments": compose(moments, UnitNorm()),
            "oriented energies, centred": compose(energies, centred),
            "moments, oriented energies, centred": compose(moments, energies, centred),
            "metric, without moments": GlyphMetric(base=energies, shape=case.side, dimensions=128),
            "metric, without second order": GlyphMetric(
                base=compose(moments, energies), shape=case.side, dimensions=128
            ),
        }
    for name, features in several.items():
        if features.name != setup.features.name:
            kept = setup.dimensions if isinstance(features, GlyphMetric) else None
            kept = None if kept is None else min(kept, 128)
            yield Variant(name=f"features: {name}", setups=(replace(setup, features=features, dimensions=kept),))
    if setup.dimensions is not None:
        for kept in (setup.dimensions // 2, setup.dimensions // 4):
            yield Variant(name=f"features: {kept} directions", setups=(replace(setup, dimensions=kept),))


def _other_steps(setup: Setup) -> Iterator[Variant]:
    server = setup.server
    if setup.features is not None:
        yield Variant(name="a bias", setups=(replace(setup, model=linear),))
    for clip_norm in CLIP_NORMS if setup.local is STEEPEST else ():
        yield Variant(
            name=f"clip: at most {clip_norm:g}, best of {len(RATES)} rates",
            setups=tuple(
                replace(
                    setup,
                    clip=FixedClip(clip_norm=clip_norm),
                    local=Local(learning_rate=1.0, shuffle=False),
                    server=server.replaced(learning_rate=rate * server.learning_rate / clip_norm),
                )
                for rate in RATES
            ),
        )
    yield Variant(name="no decay", setups=(replace(setup, server=server.replaced(decay="none")),))
    if server.average == "none":
        yield Variant(name="the tail's average", setups=(replace(setup, server=server.replaced(average="tail")),))
    else:
        yield Variant(name="no average", setups=(replace(setup, server=server.replaced(average="none")),))
    if server.kind == "momentum":
        plain = server.replaced(kind="sgd", learning_rate=server.learning_rate * 2)
        yield Variant(name="no momentum", setups=(replace(setup, server=plain),))
    for factor in (0.5, 2.0):
        rounds = max(1, round(setup.rounds * factor))
        yield Variant(name=f"{rounds} rounds", setups=(replace(setup, rounds=rounds),))
    for factor in (0.5, 2.0):
        faster = server.replaced(learning_rate=server.learning_rate * factor)
        yield Variant(name=f"rate {faster.learning_rate:g}", setups=(replace(setup, server=faster),))


def _fewer_clients(setup: PaperSetup, case: Case) -> Variant:
    """Cohorts of half the size, with the noise that pays for as many rounds."""
    last = setup.schedule.steps[-1]
    rounds = within(setup.schedule, clients=case.clients, budget=case.budget).rounds
    cohort = max(1.0, last.cohort // 2)

    def allowed(noise_multiplier: float) -> Schedule | None:
        schedule = Schedule((replace(last, cohort=cohort, noise_multiplier=noise_multiplier),))
        try:
            found = within(schedule, clients=case.clients, budget=case.budget)
        except BudgetExceeded:
            return None
        return schedule if found.rounds >= rounds else None

    steps = (allowed(last.noise_multiplier * 2 ** (step / 64)) for step in range(-128, 65))
    schedule = next(found for found in steps if found is not None)
    noise = schedule.steps[-1].noise_multiplier
    return Variant(name=f"{cohort:g} clients a round, noise {noise:.3g}", setups=(replace(setup, schedule=schedule),))


def _measured(table: Table, setup: AnySetup, case: Case) -> Measured:
    split = setup.prepared(table.split, cache=table.cache)
    seeds = range(table.seeds)
    return measure(setup, split, clients=case.clients, budget=case.budget, seeds=seeds)


def _rows(examples: Examples, rows: slice) -> Examples:
    return replace(examples, features=examples.features[rows], labels=examples.labels[rows])
