"""Recipes for table 1, by name. A recipe says, for a number of clients and a budget, how to learn.

| recipe    | what it knows before it sees data                                                          |
| --------- | ------------------------------------------------------------------------------------------ |
| `best`    | handwriting: drawings may be moved, slanted and scaled; hands differ as in random drawings |
| `general` | images: strokes have directions (fixed filters, nothing about handwriting)                 |
| `network` | nothing: the paper's own perceptron of 531,400 weights on raw pixels                       |
| `paper`   | nothing: the paper's text, whose guarantee does not hold (see `papers.geyer.paper`)   |

No recipe looks at private or test data when it runs. What was tuned was tuned by hand on the last 10,000 training
examples, declared public (`papers.geyer.ablations`), but for constants that earlier research chose by test accuracies:
those of the moments and the drawings, first rates and rounds. A new recipe is one more entry of `RECIPES`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from harness import checks
from incrowd import Budget, ConfigError, DataError, Local, ServerOptimizer
from incrowd.learning.features import OrientedEnergies, SecondOrderEnergies, UnitNorm, compose
from incrowd.privacy.plan import signal
from papers.geyer.handwriting import GlyphMetric, Glyphs, MomentNormalisation
from papers.geyer.measure import AnySetup
from papers.geyer.paper import CONSTANTS, INIT_SCALE, QUICK, PaperSetup, paper_network
from papers.geyer.setup import Setup

MANY_CLIENTS = 5000
"""From so many clients on, a share of them in each round does what all of them would, in less time."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """The public facts of a federation, which is all that a recipe may know.

    Edge cases: examples that are not grey images are refused.
    """

    clients: int
    budget: Budget
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.shape) != 2:
            raise DataError(f"examples have the shape {self.shape}: these recipes are for grey images")

    @property
    def side(self) -> tuple[int, int]:
        """Height and width of an image."""
        return self.shape[0], self.shape[1]

    @cached_property
    def signal(self) -> float:
        """See `incrowd.privacy.plan.signal`."""
        return signal(self.clients, self.budget)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A way to learn: `setup` turns the public facts of a federation into settings."""

    name: str
    prior: str
    setup: Callable[[Case], AnySetup]


def best(case: Case) -> Setup:
    """Softmax regression on a metric of random drawings; the stronger the signal, the more directions and rounds."""
    if case.signal < 120:
        strokes = compose(MomentNormalisation(), OrientedEnergies())
        few = GlyphMetric(base=strokes, shape=case.side, dimensions=128)
        return Setup(features=few, dimensions=32, rounds=5, server=_decaying(32.0))
    rich = compose(MomentNormalisation(), SecondOrderEnergies())
    many = GlyphMetric(base=rich, shape=case.side, dimensions=512)
    if case.signal < 1000:
        return Setup(features=many, dimensions=128, rounds=20, server=_decaying(32.0))
    if case.clients < MANY_CLIENTS:
        return Setup(features=many, dimensions=512, rounds=20, server=_decaying(128.0))
    # More glyphs, each drawn less often: as many images to learn from, and directions beyond the 599 of 600 glyphs.
    most = GlyphMetric(base=rich, shape=case.side, dimensions=1024, glyphs=Glyphs(count=1200, variants=25))
    return Setup(features=most, dimensions=1024, rounds=40, server=_decaying(128.0), share=0.1)


def general(case: Case) -> Setup:
    """Softmax regression on oriented energies less their mean, chosen on handwriting."""
    features = compose(OrientedEnergies(floor=0.005), UnitNorm(centred=True))
    if case.signal < 120:
        return Setup(features=features, rounds=5, server=_decaying(32.0))
    if case.signal < 1000:
        return Setup(features=features, rounds=20, server=_decaying(32.0))
    if case.clients < MANY_CLIENTS:
        return Setup(features=features, rounds=30, server=_heavy(40.0))
    return Setup(features=features, rounds=120, server=_heavy(40.0), share=0.05)


def network(case: Case) -> Setup:
    """The paper's perceptron and learning rate, two passes of ten batches (E = 2, B = 10), and long server steps.

    Where the signal is weak, everyone takes part and the weights start with a variance of 1 / inputs; elsewhere of 2.
    """
    local = Local(learning_rate=0.1, batches=10, epochs=2)
    server = ServerOptimizer(learning_rate=4.0, decay="linear", average="tail")
    if case.signal < 1000:
        return Setup(model=paper_network, local=local, rounds=12, server=server, init_scale=math.sqrt(3))
    share, rounds = (0.4, 30) if case.clients < MANY_CLIENTS else (0.05, 40)
    return Setup(model=paper_network, local=local, rounds=rounds, share=share, server=server, init_scale=INIT_SCALE)


def paper(case: Case) -> PaperSetup:
    """The paper's text, with the constants that a grid search found for this number of clients."""
    return _of_row(CONSTANTS, case)


def paper_quick(case: Case) -> PaperSetup:
    """The same with fewer client trainings, where the paper's takes hours."""
    return _of_row(CONSTANTS | QUICK, case)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(name="best", prior="handwriting: moments, oriented energies, a metric of random drawings", setup=best),
        Recipe(name="general", prior="images: oriented energies, fixed filters", setup=general),
        Recipe(name="network", prior="none: raw pixels, the paper's network", setup=network),
        Recipe(name="paper", prior="none: raw pixels, the paper's network", setup=paper),
        Recipe(name="paper-quick", prior="none: raw pixels, the paper's network", setup=paper_quick),
    )
}


def named(name: str) -> Recipe:
    """The recipe of this name."""
    checks.known(RECIPES, recipe=name)
    return RECIPES[name]


def _of_row(constants: Mapping[int, PaperSetup], case: Case) -> PaperSetup:
    if case.clients not in constants:
        remedy = f"the paper has rows for {', '.join(map(str, constants))}"
        raise ConfigError(field="clients", value=case.clients, remedy=remedy)
    return constants[case.clients]


def _decaying(rate: float) -> ServerOptimizer:
    return ServerOptimizer(learning_rate=rate, decay="linear")


def _heavy(rate: float) -> ServerOptimizer:
    return ServerOptimizer(kind="momentum", learning_rate=rate, decay="linear")
