"""Attackers among devices that name directions: what a model of the digits is worth when they are done.

Attackers know the code and a model that works, and answer with whatever the test lets through, which is one of the
million directions. 12,000 answers, 650 weights, k = 20, a quarter merged:

    python benchmarks/direction_attacks.py --epsilon 8 --seeds 3
    python benchmarks/direction_attacks.py --epsilon 1,2,4,8 --shares .01,.05,.1,.2 --attacks again,uphill,worst
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits

from harness.arrays import Floats
from incrowd import SeededRandomness
from incrowd.drawdiscard import MULTINOMIAL, DirectionTest, Glm, Pool, device
from incrowd.privacy.mechanism import ChosenDirection, Mechanism, grid, whole_noise

ANSWERS, INSTANCES, MERGE, GAMMA, EACH = 12_000, 20, 0.25, 4.0, 10
TRIED = 2**10
"""So many directions does an attacker try for an answer: the best lies three deviations along, which just passes."""

ALL = 2**whole_noise.SEED_BITS
"""All of them are tried for one that is always the same."""


@dataclass(eq=False)
class Game:
    """One training: the digits, a pool, and randomness."""

    epsilon: float
    seed: int

    def __post_init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        self.draw = np.random.default_rng(self.seed)
        order = self.draw.permutation(len(images))
        held = len(images) // 5
        self.features: Floats = np.asarray(images / 16.0, np.float64)
        self.responses: Floats = np.eye(10)[labels]
        self.measured, self.learnt = order[:held], order[held:]
        self.devices = np.array_split(self.learnt, len(self.learnt) // EACH)
        self.model = Glm(features=64, link=MULTINOMIAL, outputs=10)
        self.mechanism = Mechanism(size=650, clip=1.0, epsilon=self.epsilon, noise="direction", bound="norm")
        self.good = self._good()

    @property
    def choice(self) -> ChosenDirection:
        """How a direction is chosen."""
        return self.mechanism.choice

    def gradient(self, weights: Floats, rows: np.ndarray) -> Floats:
        """The mean gradient over these rows."""
        found = self.model.gradient(weights, self.features[rows], self.responses[rows])
        return np.asarray(found, np.float64)

    def accuracy(self, weights: Floats) -> float:
        """On rows that nobody has."""
        predicted = self.model.predict(weights, self.features[self.measured])
        return float((predicted.argmax(axis=1) == self.responses[self.measured].argmax(axis=1)).mean())

    def named(self, weights: Floats) -> int:
        """The seed that an honest device names."""
        rows = self.devices[self.draw.integers(len(self.devices))]
        seeds = self.draw.integers(0, ALL, self.choice.candidates)
        best = whole_noise.most_along(seeds, self.choice.bounded(self.gradient(weights, rows)).astype(np.float64))
        if self.draw.random() >= self.choice.honest:
            best = (best + 1 + int(self.draw.integers(len(seeds) - 1))) % len(seeds)
        return int(seeds[best])

    def best_of(self, seeds: np.ndarray, wanted: Floats) -> int:
        """Of these seeds the one whose direction takes weights where they are wanted."""
        return int(
            seeds[
                max((float(part.max()), start + int(part.argmax())) for start, part in self._along(seeds, -wanted))[1]
            ]
        )

    def _along(self, seeds: np.ndarray, wanted: Floats) -> list[tuple[int, Floats]]:
        return [
            (start, whole_noise.sign_bits(seeds[start : start + 2**14], len(wanted)).astype(np.float64) @ wanted)
            for start in range(0, len(seeds), 2**14)
        ]

    def _good(self) -> Floats:
        weights = np.zeros(650)
        for _ in range(300):
            weights -= 0.5 * self.gradient(weights, self.learnt)
        return weights


Attack = Callable[[Game, Pool, dict[str, object]], tuple[int, int]]
"""The version to answer to, and the seed to name."""


def away(game: Game, pool: Pool, memory: dict[str, object]) -> tuple[int, int]:
    """Always the direction, of all, that leads away from a good model most."""
    if "seed" not in memory:
        memory["seed"] = game.best_of(np.arange(ALL), -game.good)
    return pool.draw_version()[0], int(str(memory["seed"]))


def away_again(game: Game, pool: Pool, _: dict[str, object]) -> tuple[int, int]:
    """Each time the best of other directions."""
    return pool.draw_version()[0], game.best_of(game.draw.integers(0, ALL, TRIED), -game.good)


def uphill(game: Game, pool: Pool, _: dict[str, object]) -> tuple[int, int]:
    """Up the gradient over everybody's examples, at what was drawn."""
    version, drawn = pool.draw_version()
    wanted = game.gradient(drawn.astype(np.float64), game.learnt)
    return version, game.best_of(game.draw.integers(0, ALL, TRIED), wanted)


def from_the_drawn(game: Game, pool: Pool, _: dict[str, object]) -> tuple[int, int]:
    """The same from the worst of ten draws."""
    draws = [pool.draw_version() for _ in range(10)]
    version, _drawn = min(draws, key=lambda one: float(one[1].astype(np.float64) @ game.good))
    return version, game.best_of(game.draw.integers(0, ALL, TRIED), -game.good)


def from_the_oldest(game: Game, pool: Pool, _: dict[str, object]) -> tuple[int, int]:
    """From a version that is nearly forgotten, away from a good model."""
    newest = pool.state().last
    known = next(number for number in range(max(0, newest - 2_000), newest + 1) if pool.version(number) is not None)
    return known, game.best_of(game.draw.integers(0, ALL, TRIED), -game.good)


def one_class(game: Game, pool: Pool, _: dict[str, object]) -> tuple[int, int]:
    """Everything shall be a 3."""
    wanted = np.zeros((65, 10))
    wanted[:, 3] = 1.0
    return pool.draw_version()[0], game.best_of(game.draw.integers(0, ALL, TRIED), wanted.ravel())


ATTACKS: dict[str, Attack] = {
    "the best direction of all, away from a good model": away,
    "the best of 1,024 directions again each time": away_again,
    "uphill, along the gradient": uphill,
    "from the worst of ten draws": from_the_drawn,
    "from the oldest version that is known": from_the_oldest,
    "everything is a 3": one_class,
}


def trained(game: Game, attack: Attack | None, share: float) -> float:
    """The accuracy after all answers, of which a share are attackers'."""
    gamma, choice = GAMMA, game.choice
    variance = (gamma * game.mechanism.noise_scale) ** 2
    pool = Pool.initial(
        np.zeros(650),
        instances=INSTANCES,
        update_variance=variance,
        randomness=SeededRandomness(game.seed),
        merge=MERGE,
    )
    test, memory = DirectionTest(game.mechanism), dict[str, object]()
    for _ in range(ANSWERS):
        if attack is not None and game.draw.random() < share:
            version, seed = attack(game, pool, memory)
        else:
            version, drawn = pool.draw_version()
            seed = game.named(drawn.astype(np.float64))
        parent = pool.version(version)
        if parent is None:
            continue
        answer = device.stepped(parent, grid.Whole(choice.steps_of(seed), choice.step), gamma=gamma)
        if test.accepts(answer, parent, gamma):
            pool.discard(answer)
    return game.accuracy(pool.weights())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", default="8", help="one, or several with commas")
    parser.add_argument("--shares", default=".05,.2", help="of the answers that are attackers'")
    parser.add_argument("--attacks", default="", help="words of their names, with commas; all without it")
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    shares = [float(share) for share in given.shares.split(",")]
    named = {name: attack for name, attack in ATTACKS.items() if any(word in name for word in given.attacks.split(","))}

    def mean(epsilon: float, attack: Attack | None, share: float) -> float:
        return statistics.fmean(trained(Game(epsilon, seed), attack, share) for seed in range(given.seeds))

    print(f"| epsilon | attackers | none | {' | '.join(f'{100 * share:g} %' for share in shares)} |")
    print(f"| ---: | --- | ---: |{' ---: |' * len(shares)}")
    for epsilon in map(float, given.epsilon.split(",")):
        alone = mean(epsilon, None, 0.0)
        for name, attack in named.items():
            found = " | ".join(f"{mean(epsilon, attack, share):.2f}" for share in shares)
            print(f"| {epsilon:g} | {name} | {alone:.2f} | {found} |", flush=True)


if __name__ == "__main__":
    main()
