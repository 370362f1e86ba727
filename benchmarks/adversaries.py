"""What three adversaries find out about one contribution to a pool of draw and discard, by attack.

    python benchmarks/adversaries.py             about a minute on two cores
    python benchmarks/adversaries.py --quick     a fifth of the contributions
    python benchmarks/adversaries.py --lemma     lemma 1 of the paper against one look at the instances, a minute

Who listens to what a device sends, who looks at the server's instances, and who sees what is published: each tells two
tables apart that are as unlike as can be, at epsilon 2, by contributions to pools of several sizes whose answers
overwrite (merge 1) or are merged by a quarter. Each figure is
a lower bound on epsilon with 95 % confidence, and the area under the curve in brackets.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np

from incrowd import SeededRandomness, Specification
from incrowd.audit.bounds import SURE, lower_bound
from incrowd.audit.device_plays import DeviceGame, DevicePlay
from incrowd.audit.devices import pooled
from incrowd.audit.finding import Finding
from incrowd.audit.pool_plays import PoolGame
from incrowd.audit.pool_views import MOST_OTHERS, at_one_moment

NUMBER = {"type": "number", "low": 0, "high": 1}
FIELDS = {"bought": {"type": "boolean"}, "first": NUMBER, "second": NUMBER, "third": NUMBER}
POOLS = (1, 4, 20)
MERGES = (1.0, 0.25)
SEEN = (
    "what a device sends",
    "instances before and after",
    "instances after",
    "instances before and later",
    "one instance later",
    "average before and after",
    "average before and later",
)
TRIALS, FEW, LEMMA = 20_000, 4_000, 2_000_000


def measured(trials: int) -> Iterator[tuple[int, float, list[Finding]]]:
    """The findings of each pool."""
    for instances in POOLS:
        for merge in MERGES:
            asked = _asked(epsilon=2.0, instances=instances, merge=merge)
            yield instances, merge, pooled(asked, trials=trials, seed=1)


def _asked(**given: float) -> Specification:
    return Specification.from_formula(
        "bought ~ (first + second + third) ** 2",
        name="a",
        fields=FIELDS,
        gamma=0.05,
        clip=0.1,
        noise="laplace",
        **given,
    )


def _many(game: DeviceGame, trials: int) -> DevicePlay:
    """As `DeviceGame.play`, with the fast noise of simulations: there are millions."""
    stream, mechanism = SeededRandomness(seed=1).stream("lemma"), game.mechanism
    inside = stream.bits(trials) % np.uint64(2) == 1
    noise = stream.laplaces(trials * mechanism.size).reshape(trials, -1)
    sent, step = np.where(inside[:, None], *game.sent), mechanism.whole.step
    steps = np.rint((sent + mechanism.noise_scale * noise) / step).astype(np.int64)
    return replace(game.play(1, 1), inside=inside, noise=noise, steps=steps, step=step)


def lemma(trials: int) -> tuple[int, float, float]:
    """Epsilon 6 and four instances, at one moment, where the answer's parent is still there: how many such games there
    were, and what they prove with 95 % and with all but one chance in a million. The paper has epsilon / 2.
    """
    asked = _asked(epsilon=6.0, instances=4, merge=1.0)
    game = PoolGame(device=DeviceGame(specification=asked), others=1)
    scores, coins = [], []
    for seen, inside in game.seen(_many(game.device, trials), seed=1):
        if seen.drawn != seen.entered:
            scores.append(at_one_moment(game, seen))
            coins.append(inside)
    score, inside = np.concatenate(scores), np.concatenate(coins)
    told = [lower_bound(score[inside], score[~inside], delta=0.0, confidence=each) for each in (0.95, SURE)]
    return len(score), told[0], told[1]


def main() -> None:
    """Measure all, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the contributions")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--lemma", action="store_true", help="lemma 1 of the paper alone")
    given = parser.parse_args()
    if given.lemma:
        games, likely, sure = lemma(LEMMA)
        print(f"{games} games: epsilon of at least {likely:.2f} with 95 % confidence, {sure:.2f} surely; the paper: 3")
        return
    results = measured(FEW if given.quick else TRIALS)
    if given.json:
        told = [{"instances": k, "merge": merge, **asdict(each)} for k, merge, found in results for each in found]
        print(json.dumps(told))
        return
    print(f"| instances | merge | answers later | {' | '.join(SEEN)} |")
    print("| ---: | ---: | ---: | " + " | ".join(["---:"] * len(SEEN)) + " |")
    for instances, merge, found in results:
        cells = [f"{each.lower_bound:.2f} ({each.auc:.2f})" for each in found]
        print(f"| {instances} | {merge:g} | {min(MOST_OTHERS, 2 * instances)} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
