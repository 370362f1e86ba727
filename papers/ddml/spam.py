"""The spam test of Pihur et al. (2018), section III-D4, measured: whom it turns away, and what attackers do to a model.

Honest traffic comes first: a test is worth nothing if its rate of false alarms is not what was asked for. Then each
kind of attacker among devices that learn the embedded digits, with the test and without.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness import checks
from harness.results import Finding
from harness.seeds import Entry, Say, silent
from incrowd import ConfigError, SeededRandomness
from incrowd.data import load_digits
from incrowd.drawdiscard import MULTINOMIAL, Glm, HonestUpdates, Pool, SpamTest, spam_threshold
from incrowd.privacy.mechanism import Mechanism
from papers.ddml.attacks import ATTACKS, Attack, Problem, Study

EPSILON = math.log(32)
POOLS = ((30, 33), (20, 387), (10, 650))
"""Instances and weights on which honest traffic is measured: the paper's two models, and the digits."""

PER_DEVICE = 10
PAPER_THRESHOLD = 3.0
WITHIN = 0.2
BLOCKS = 20


@dataclass(frozen=True, kw_only=True)
class Spam:
    """A wanted rate of false rejections, how much traffic shows it, and who attacks a pool of so many instances.

    Edge cases: a rate or share that is not between 0 and 1 is refused, so are traffic too short to be cut in blocks,
    and pools of one instance.
    """

    rate: float = 0.01
    attackers: float = 0.05
    honest: int = 40_000
    updates: int = 12_000
    instances: int = 20
    pools: Sequence[tuple[int, int]] = POOLS
    attacks: Sequence[Attack] = field(default=ATTACKS, repr=False)
    seed: int = 1
    say: Say = field(default=silent, repr=False)

    def __post_init__(self) -> None:
        checks.fraction(rate=self.rate, attackers=self.attackers)
        checks.count(honest=self.honest, updates=self.updates)
        if self.honest < BLOCKS:
            raise ConfigError(field="honest", value=self.honest, remedy=f"give at least {BLOCKS}")
        for instances in (self.instances, *(instances for instances, _ in self.pools)):
            if instances < 2:
                raise ConfigError(field="instances", value=instances, remedy="the test compares instances: two or more")
        checks.count(**{f"pools[{place}]": weights for place, (_, weights) in enumerate(self.pools)})

    def report(self) -> Entry:
        """False rejections, and each attack with and without the test."""
        honest = [self.honest_traffic(instances, weights) for instances, weights in self.pools]
        study = Study(
            problem=digits(self.instances),
            attackers=self.attackers,
            updates=self.updates,
            rate=self.rate,
            seed=self.seed,
        )
        outcomes = []
        for attack in (None, *self.attacks):
            plain, tested = (study.train(attack, tested=tested) for tested in (False, True))
            outcomes.append(
                {
                    "attack": tested.attack,
                    "attackers_rejected": tested.attackers_rejected,
                    "honest_rejected": tested.honest_rejected,
                    "accuracy_without_test": plain.accuracy,
                    "accuracy_with_test": tested.accuracy,
                }
            )
            self.say(
                f"{tested.attack}: {tested.attackers_rejected:.0%} of the attackers turned away; "
                f"accuracy {plain.accuracy:.3f} without the test, {tested.accuracy:.3f} with it"
            )
        report: dict[str, Any] = {
            "rate": self.rate,
            "attackers": self.attackers,
            "honest": honest,
            "attacks": outcomes,
            "seed": self.seed,
        }
        return report | {"findings": [one.to_json() for one in _findings(report)]}

    def honest_traffic(self, instances: int, weights: int) -> Entry:
        """The share of honest updates, of noise alone, that a settled pool turns away; and with a fixed t of 3."""
        mechanism = Mechanism(size=weights, clip=1.0, epsilon=EPSILON, privacy="feature")
        honest = HonestUpdates.of(mechanism, gamma=1.0, gradient=0.0)  # noise alone
        randomness = SeededRandomness(self.seed)
        pool = Pool.initial(
            np.zeros(weights), instances=instances, update_variance=mechanism.noise_variance, randomness=randomness
        )
        threshold = spam_threshold(instances=instances, weights=weights, rate=self.rate, honest=honest)
        test, noise = SpamTest(pool, threshold=threshold, honest=honest), randomness.stream("noise")
        rejected, fixed = np.zeros(self.honest, bool), 0
        settling = 2 * instances**2
        for number in range(-settling, self.honest):
            sent = pool.draw() + mechanism.noise_scale * noise.laplaces(weights)
            if number >= 0:
                mean, spread = pool.mean_and_spread()
                fixed += bool((np.abs(sent - mean) > PAPER_THRESHOLD * spread).any())
            accepted = test.accepts(sent)
            if accepted:
                pool.discard(sent)
            if number >= 0:
                rejected[number] = not accepted
        blocks = np.array([block.mean() for block in np.array_split(rejected, BLOCKS)])
        self.say(f"k = {instances}, {weights} weights: {rejected.mean():.2%} turned away")
        return {
            "instances": instances,
            "weights": weights,
            "threshold": threshold,
            "wanted": self.rate,
            "rejected": float(rejected.mean()),
            "standard_error": float(blocks.std(ddof=1) / math.sqrt(BLOCKS)),
            "rejected_with_t_of_3": fixed / self.honest,
        }


def digits(instances: int) -> Problem:
    """Softmax regression on the embedded digits, ten a device; epsilon = log 32 per feature."""
    split = load_digits()
    model = Glm(features=64, link=MULTINOMIAL, outputs=10)
    devices = len(split.train) // PER_DEVICE
    chosen = slice(0, devices * PER_DEVICE)
    test = split.test or split.train
    return Problem(
        model=model,
        mechanism=Mechanism(size=model.size, clip=0.1, epsilon=EPSILON, privacy="feature"),
        gamma=0.03,
        instances=instances,
        features=split.train.values(chosen).reshape(devices, PER_DEVICE, 64).astype(np.float64),
        responses=np.eye(10)[split.train.labels[chosen]].reshape(devices, PER_DEVICE, 10),
        test_features=test.values(slice(None)).reshape(-1, 64).astype(np.float64),
        test_responses=np.eye(10)[test.labels],
    )


def _findings(report: Entry) -> list[Finding]:
    rate, calm = report["rate"], report["attacks"][0]
    ratios = [row["rejected"] / rate for row in report["honest"]]
    fixed = max(row["rejected_with_t_of_3"] for row in report["honest"])
    caught = [row for row in report["attacks"][1:] if row["attackers_rejected"] > 0.5]
    passed = [row for row in report["attacks"][1:] if row not in caught]
    worst = min((row["accuracy_without_test"] for row in report["attacks"]), default=0.0)
    left = min((row["accuracy_with_test"] for row in report["attacks"]), default=0.0)
    return [
        Finding(
            statement="a threshold t on every weight tells honest updates from others",
            measured=f"a fixed t of 3 turns away up to {fixed:.0%} of the honest ones; with a t from the wanted rate "
            f"they are {min(ratios):.2f} to {max(ratios):.2f} times as many as wanted",
            agrees=all(abs(ratio - 1) <= WITHIN for ratio in ratios),
        ),
        Finding(
            statement="the test protects the model",
            measured=f"the worst attack leaves an accuracy of {worst:.2f} without it and {left:.2f} with it; without "
            f"attackers it is {calm['accuracy_with_test']:.2f}",
            agrees=left > calm["accuracy_with_test"] - 0.03,
        ),
        Finding(
            statement="a fraudulent update can be told without knowing what is private",
            measured=f"turned away: {', '.join(row['attack'] for row in caught) or 'nobody'}; let through: "
            f"{', '.join(row['attack'] for row in passed) or 'nobody'}, which stay within the noise of honest devices",
            agrees=bool(caught) and not passed,
        ),
    ]
