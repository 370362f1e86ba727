"""A private average, and how much one answer gives away: the introductory example of FEDn's article, computed.

Someone may ask for the average of a feature over n users and nothing else. In the worst case all of them have a value
above the clip bound C, and one who may or may not be there has one below -C: the clipped average is C without that user
and C (n - 1) / (n + 1) with them. Gaussian noise hides which of the two it was.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from dp_accounting import GaussianDpEvent
from scipy.stats import norm

from harness import checks
from harness.arrays import Floats
from harness.pictures import BLUE, RED, axes
from incrowd import Relation
from incrowd.privacy.account import delta_at, price


@dataclass(frozen=True, kw_only=True)
class AverageQuery:
    """An average over `users` values within [-bound, bound], answered with Gaussian noise.

    Guarantee: `epsilon` and `delta` are exact for this pair of neighbours, up to rounding to the private side; the
    range from `low` to `high` holds the answer with probability 1 - 2 * tail.
    """

    users: int = 10
    bound: float = 1.0
    noise_std: float = 0.2
    tail: float = 0.005

    def __post_init__(self) -> None:
        checks.count(users=self.users)
        checks.positive(bound=self.bound, noise_std=self.noise_std)
        checks.fraction(tail=2 * self.tail)

    @property
    def without(self) -> float:
        """The clipped average without the user in question."""
        return self.bound

    @property
    def present(self) -> float:
        """The clipped average with them."""
        return self.bound * (self.users - 1) / (self.users + 1)

    @property
    def event(self) -> GaussianDpEvent:
        """What one answer costs: the noise in units of the distance between the two averages."""
        return GaussianDpEvent(self.noise_std / (self.without - self.present))

    def loss(self, answers: Floats) -> Floats:
        """How strongly answers speak for one of the two: ``|log(P[x | present] / P[x | without])|``."""
        middle = (self.present + self.without) / 2
        return np.abs(answers - middle) * (self.without - self.present) / self.noise_std**2

    @property
    def low(self) -> float:
        """Below this the answer lies with probability `tail`, if the user is present."""
        return float(norm.ppf(self.tail, self.present, self.noise_std))

    @property
    def high(self) -> float:
        """Above this the answer lies with probability `tail`, if the user is present."""
        return float(norm.isf(self.tail, self.present, self.noise_std))

    @property
    def largest_loss(self) -> float:
        """The largest loss of an answer between `low` and `high`: an epsilon that holds for all but the tails."""
        return float(self.loss(np.array([self.low, self.high])).max())

    def facts(self) -> dict[str, float]:
        """What the figure shows, and what the article's way of reading it leaves out."""
        delta = 2 * self.tail
        relation = Relation.ADD_OR_REMOVE_ONE
        textbook = math.sqrt(2 * math.log(1.25 / delta)) / self.event.noise_multiplier
        return {
            "average_without": self.without,
            "average_present": self.present,
            "noise_multiplier": self.event.noise_multiplier,
            "delta": delta,
            "epsilon_of_the_figure": self.largest_loss,
            "epsilon_exact": price(self.event, delta=delta, relation=relation).epsilon,
            "epsilon_of_the_textbook": textbook,
            "delta_exact_at_the_figures_epsilon": delta_at(self.event, epsilon=self.largest_loss, relation=relation),
        }


def plot_average_query(path: Path, query: AverageQuery) -> None:
    """The privacy loss over the answer, and how likely the answer is; dotted lines cut off the tails."""
    reach = 4.5 * query.noise_std
    answers = np.linspace(query.present - reach, query.without + reach, 800)
    likely = norm.pdf(answers, query.present, query.noise_std)
    with axes(path, rows=2, height=3.0) as (above, below):
        above.plot(answers, query.loss(answers))
        above.axhline(query.largest_loss, color="0.6", linewidth=0.8)
        above.set_ylabel("privacy loss")
        below.plot(answers, likely, label="with the user")
        below.plot(
            answers, norm.pdf(answers, query.without, query.noise_std), color="0.6", linestyle="-", label="without"
        )
        for tail in (answers <= query.low, answers >= query.high):
            below.fill_between(answers[tail], likely[tail], alpha=0.4, color=BLUE)
        below.set_ylabel("probability density")
        below.set_xlabel("answer")
        below.legend()
        for panel in (above, below):
            for place in (query.low, query.high):
                panel.axvline(place, color=RED, linestyle=":")
