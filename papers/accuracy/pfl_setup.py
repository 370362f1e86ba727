"""CIFAR-10 as the benchmarks of pfl-research have it (Granqvist et al. 2024): 1,000 users with 50 images each.

There a cohort of 50 users gets noise as if it were 1,000 out of a million: what a large deployment would see, in less
time. Such a row tells how a model learns under that noise. It promises the 1,000 users who are there next to nothing,
and how much that is, `epsilon`, is stated beside it. The other rows keep epsilon 2 for these very users, by a recipe.
"""

import warnings
from collections.abc import Sequence

from harness import checks
from harness.seeds import Entry
from incrowd import (
    Budget,
    Federation,
    Local,
    PlanConfig,
    Poisson,
    Private,
    Schedule,
    SeededRandomness,
    ServerOptimizer,
    constant,
)
from incrowd.data import Partition, dirichlet, iid
from incrowd.learning import small_cnn
from incrowd.privacy.plan import Step
from papers.accuracy.measure import Bench, seeded

USERS = 1000
COHORT = 50
BUDGET = Budget(epsilon=2.0, delta=1e-6)

_POPULATION = 10**6
_NOISE_COHORT = 1000
_CLIP = 0.4
_ALPHA = 0.1
_NO_PROMISE = 1e9  # no plan without a budget: this one stops nothing


def pfl_rows(bench: Bench, *, rounds: int, recipes: Sequence[str]) -> list[Entry]:
    """For users who are alike, and for users of few classes: its own setting for so many rounds, and the recipes."""
    checks.count(pfl_rounds=rounds)
    return [
        row
        for name in ("iid", "dirichlet")
        for row in (as_it_is(bench, name, rounds), *(as_we_would(bench, name, recipe) for recipe in recipes))
    ]


def scaled_noise(rounds: int) -> float:
    """The multiplier of the noise on the sum over a cohort of 50: that for 1,000 out of a million, over 20."""
    config = PlanConfig(members=_POPULATION, schedule=constant(rounds=rounds, cohort=_NOISE_COHORT), sampling=Poisson)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # delta is one in a million: it is how they state it
        return config.calibrate(BUDGET).noise_multiplier * COHORT / _NOISE_COHORT


def honest_epsilon(rounds: int, noise_multiplier: float, *, users: int = USERS) -> float:
    """What users of whom 50 take part in a round are promised by such noise."""
    config = PlanConfig(members=users, schedule=_schedule(rounds, noise_multiplier), sampling=Poisson)
    return config.plan(Budget(epsilon=_NO_PROMISE, delta=BUDGET.delta)).price.epsilon


def partition(name: str, bench: Bench, seed: int) -> Partition:
    """Users who are alike, or whose classes are drawn from Dirichlet(0.1)."""
    labels, source = bench.split.train.labels, SeededRandomness(seed=seed)
    users = users_of(bench)
    if name == "iid":
        return iid(labels, clients=users, randomness=source)
    return dirichlet(labels, clients=users, alpha=_ALPHA, randomness=source)


def users_of(bench: Bench) -> int:
    """How many users there are: of a set of fewer images, one each."""
    return min(USERS, len(bench.split.train))


def _schedule(rounds: int, noise_multiplier: float) -> Schedule:
    return Schedule((Step(rounds=rounds, cohort=COHORT, noise_multiplier=noise_multiplier),))


def as_it_is(bench: Bench, name: str, rounds: int) -> Entry:
    """A small network under noise as pfl scales it, beside what that promises."""
    noise = scaled_noise(rounds)
    epsilon = honest_epsilon(rounds, noise, users=users_of(bench))
    bench.say(f"pfl's CIFAR-10, {name}, {rounds} rounds as it sets them: epsilon {epsilon:.4g}, not {BUDGET.epsilon:g}")
    privacy = Private.model_validate(
        {
            "epsilon": _NO_PROMISE,
            "delta": BUDGET.delta,
            "rounds": rounds,
            "cohort": COHORT,
            "sampling": "poisson",
            "clip": {"kind": "fixed", "clip_norm": _CLIP},
        }
    )

    def begin(seed: int) -> Federation:
        return Federation(
            small_cnn(side=bench.split.train.shape[-1], channels=3),
            bench.held_by(partition(name, bench, seed)),
            privacy=privacy,
            local=Local(learning_rate=0.1, batch_size=10),
            server=ServerOptimizer(learning_rate=1.0),
            run=seeded(seed),
        ).scheduled(_schedule(rounds, noise))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is promised stands in the row
        row = bench.row(
            begin, recipe="as pfl sets it", unit="client", clients=users_of(bench), epsilon=epsilon, delta=BUDGET.delta
        )
    return row | {"partition": name, "rounds": rounds, "noise_multiplier": noise, "stated_epsilon": BUDGET.epsilon}


def as_we_would(bench: Bench, name: str, recipe: str) -> Entry:
    """A recipe for the same users, whose epsilon holds."""
    bench.say(f"pfl's CIFAR-10, {name}, {recipe}, epsilon {BUDGET.epsilon:g}")
    privacy = Private(epsilon=BUDGET.epsilon, delta=BUDGET.delta)

    def begin(seed: int) -> Federation:
        clients = bench.held_by(partition(name, bench, seed))
        return Federation.by_recipe(recipe, clients, privacy=privacy, run=seeded(seed))

    row = bench.row(
        begin, recipe=recipe, unit="client", clients=users_of(bench), epsilon=BUDGET.epsilon, delta=BUDGET.delta
    )
    return row | {"partition": name}
