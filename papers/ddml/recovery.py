"""How fast draw and discard recovers known weights: figure 5 of Pihur et al. (2018), and the way there.

Millions of devices with examples of their own: each update that leaves a trace gets new ones. What is simulated is
exact (see `incrowd.drawdiscard.simulation`), stretch by stretch, so that time is the only limit.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from harness import checks
from harness.arrays import Floats, Matrix
from harness.pictures import BLUE, axes, dress, files, logarithmic
from harness.results import Finding
from harness.seeds import Entry, Say, silent
from incrowd import SeededRandomness
from incrowd.drawdiscard import LOGISTIC, Genealogy, Glm, GlmGradients, Pool, Updates, draw_and_discard, with_intercept
from papers.ddml.known_weights import Population, specification, truth
from papers.ddml.scores import BinaryScores

PAPER_UPDATES = 983_068_969
PAPER = {"accuracy": 0.80, "precision": 0.79, "recall": 0.72}
STRETCH = 400_000
FIRST_LOOK = 10_000
LOOKS_A_DECADE = 4
TEST_EXAMPLES = 100_000


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """So many updates to a pool that begins around zero. The defaults but for the number of updates are the paper's.

    `examples` is how many a device averages its gradient over; the paper does not say, for this model. The learning
    rate falls to 0 as the power `decay` of what is left of the updates: not in the paper, and much faster with a larger
    `gamma`.
    """

    updates: int = 10_000_000
    instances: int = 30
    gamma: float = 0.005
    examples: int = 10
    decay: float = 0.0
    seed: int = 1
    say: Say = field(default=silent, repr=False)

    def __post_init__(self) -> None:
        checks.count(updates=self.updates, instances=self.instances, examples=self.examples)
        checks.positive(gamma=self.gamma)
        checks.non_negative(decay=self.decay)
        checks.natural(seed=self.seed)

    def report(self) -> Entry:
        """The weights at the end beside the true ones, and error and accuracy over the updates."""
        started = time.perf_counter()
        stated = specification(gamma=self.gamma, instances=self.instances, examples=self.examples)
        true = truth(stated)
        weights = np.array(list(self.estimates()))
        scores = [self._scores(one) for one in weights]
        best = self._scores(true)
        report = {
            "names": ["intercept", *stated.columns],
            "true": true.tolist(),
            "estimated": weights[-1].tolist(),
            "moments": self.moments,
            "root_mean_square_error": np.sqrt(np.square(weights - true).mean(axis=1)).tolist(),
            "largest_error": np.abs(weights - true).max(axis=1).tolist(),
            "accuracy_over_time": [one.accuracy for one in scores],
            **{name: getattr(scores[-1], name) for name in PAPER},
            "truth": {name: getattr(best, name) for name in PAPER},
            "paper": PAPER | {"updates": PAPER_UPDATES},
            "share_of_positives": float(self._test.o.mean()),
            "updates": self.updates,
            "seconds": time.perf_counter() - started,
        }
        return report | {"findings": [one.to_json() for one in _findings(report)]}

    @cached_property
    def moments(self) -> list[int]:
        """After how many updates to look: evenly spread over the decades, and at the end."""
        first = min(FIRST_LOOK, self.updates)
        looks = 1 + int(np.ceil(LOOKS_A_DECADE * np.log10(self.updates / first)))
        return sorted({round(moment) for moment in np.geomspace(first, self.updates, looks)})

    def estimates(self) -> Iterator[Floats]:
        """The average of the instances at each moment."""
        pool = Pool.initial(
            np.zeros(self._model.size),
            instances=self.instances,
            update_variance=specification(gamma=self.gamma, instances=self.instances).update_variance,
            randomness=SeededRandomness(self.seed),
        )
        instances = pool.instances
        done = 0
        for moment in self.moments:
            while done < moment:
                size = min(STRETCH, moment - done)
                instances = self.stretch(instances, size, number=done)
                done += size
            self.say(f"{done:,} of {self.updates:,} updates")
            yield instances.mean(axis=0, dtype=np.float64)

    def stretch(self, instances: Matrix, size: int, *, number: int) -> Matrix:
        """All instances after so many more updates; `number` of them came before."""
        randomness = SeededRandomness((self.seed << 64) + number)
        genealogy = Genealogy(draw_and_discard(instances=self.instances, updates=size, randomness=randomness), [size])
        needed = genealogy.needed
        examples = Population.sample(max(1, len(needed)) * self.examples, randomness.stream("examples"))
        inputs = with_intercept(examples.features()).reshape(-1, self.examples, self._model.size)
        devices = np.zeros(size, np.int64)
        devices[needed] = np.arange(len(needed))  # only those whose update leaves a trace need examples
        updates = Updates(
            gradients=GlmGradients(self._model, inputs, examples.o.reshape(-1, self.examples, 1)),
            mechanism=specification(gamma=self.gamma, instances=self.instances).mechanism,
            devices=devices,
            rates=self.gamma * (1 - (number + np.arange(size)) / self.updates) ** self.decay,
        )
        return advance(updates, genealogy, instances)

    @cached_property
    def _model(self) -> Glm:
        return Glm(features=len(specification().columns), link=LOGISTIC)

    @cached_property
    def _test(self) -> Population:
        return Population.sample(TEST_EXAMPLES, SeededRandomness(self.seed).stream("test"))

    @cached_property
    def _test_inputs(self) -> Matrix:
        inputs: Matrix = with_intercept(self._test.features())
        return inputs

    def _scores(self, weights: Floats) -> BinaryScores:
        return BinaryScores.of(self._test.o, self._test_inputs @ weights, threshold=0.0)


def advance(updates: Updates, genealogy: Genealogy, instances: Matrix) -> Matrix:
    """All instances at the genealogy's first moment, where `incrowd.drawdiscard.simulation` gives their average."""
    versions = dict(enumerate(instances))
    for update, parent in zip(genealogy.needed.tolist(), genealogy.parents[genealogy.needed].tolist(), strict=True):
        weights = versions[parent]
        versions[len(instances) + update] = weights - updates.step(weights, update)
    return np.stack([versions[version] for version in genealogy.looked_at[0].tolist()])


def _findings(report: Entry) -> list[Finding]:
    error, most, best = report["root_mean_square_error"][-1], report["largest_error"][-1], report["truth"]
    spread = float(np.std(report["true"]))
    measures = ", ".join(f"{name} {report[name]:.3f} (the truth: {best[name]:.3f})" for name in PAPER)
    share = report["share_of_positives"]
    return [
        Finding(
            statement=f"after {PAPER_UPDATES:,} updates the estimates are very close to the true weights",
            measured=f"after {report['updates']:,} updates the root mean square error is {error:.3f}, the largest "
            f"{most:.3f}; the weights themselves vary by {spread:.2f}",
            agrees=error < spread / 10,
        ),
        Finding(
            statement=", ".join(f"{name} {value:.2f}" for name, value in PAPER.items()),
            measured=measures,
            agrees=all(abs(report[name] - value) < 0.03 for name, value in PAPER.items()),
        ),
        Finding(
            statement="the true probability of a positive outcome is about 46 %",
            measured=f"{share:.1%}, by the choice of how the fields are distributed, which the paper does not state; "
            "its accuracy, precision and recall together imply 42 %",
            agrees=abs(share - 0.46) < 0.01,
        ),
    ]


def plot_recovery(folder: Path, report: Entry) -> list[str]:
    """True and estimated weights; error and accuracy over the updates. Gives the names of the files."""
    paths = files(folder, "ddml-figure5")
    with axes(*paths, columns=3, height=3.4) as (both, error, accuracy):
        ends = [min(report["true"]), max(report["true"])]
        both.plot(ends, ends, color="grey", linewidth=1, linestyle="-", label="estimate = truth")
        both.plot(report["true"], report["estimated"], "o", color=BLUE, markersize=4, label="a weight")
        error.plot(report["moments"], report["root_mean_square_error"], label="root mean square")
        error.plot(report["moments"], report["largest_error"], label="largest")
        logarithmic(error, "y")
        for panel in (error, accuracy):
            panel.set_xscale("log")
        accuracy.plot(report["moments"], report["accuracy_over_time"], label="learnt")
        accuracy.axhline(report["truth"]["accuracy"], color="black", linestyle="--", label="with the true weights")
        accuracy.axhline(report["paper"]["accuracy"], color="grey", linestyle=":", label="the paper")
        dress(both, "true weight", f"estimate, {report['updates']:,} updates", title="SIMULATION")
        dress(error, "updates", "error of the weights", title="SIMULATION, no noise")
        dress(accuracy, "updates", "accuracy on other examples", title="SIMULATION, no noise")
    return [str(path) for path in paths]
