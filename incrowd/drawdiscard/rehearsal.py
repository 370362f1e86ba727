"""Rehearses a specification on a table: the accuracy at its epsilon, before a server asks any device."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from incrowd import _validate
from incrowd._random import Floats, Integers, SeededRandomness
from incrowd._ranks import roc_auc
from incrowd.drawdiscard.device import Device
from incrowd.drawdiscard.fields import BooleanField, CategoryField
from incrowd.drawdiscard.policy import Policy
from incrowd.drawdiscard.pool import Pool
from incrowd.drawdiscard.simulation import (
    GlmGradients,
    Updates,
    draw_and_discard,
    gammas,
    seeded_noise,
    simulate,
    split_among_devices,
    with_intercept,
)
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import DataError
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.device import RELATION

WIDE = 1_000  # a table with more features than this stays sparse
LOOKS = 12  # the number of points of the curve
NEEDED = 0.95  # the share of the whole gain that enough contributions reach
FEWEST = 10  # the smallest number of rows of a rehearsal

Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Rehearsal:
    """A specification, a table by column, and a number of contributions.

    The measures are on a share `held_out` of the rows. Each device has as many of the others as a contribution uses, or
    fewer if `devices` asks for it. Random devices contribute one after the other.

    Guarantee: pool, steps, noise, merging and averages are those of the protocol (`simulation.simulate`); the same
    arguments give the same report. A rehearsal writes nothing.
    """

    asked: Specification
    table: Mapping[str, Sequence[object]] = field(repr=False)
    contributions: int = 10_000
    devices: int | None = None
    held_out: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.count(contributions=self.contributions)
        _validate.fraction(held_out=self.held_out)
        if self.devices is not None:
            _validate.count(devices=self.devices)
        usable = len(self._examples[1])
        if usable < FEWEST:
            raise DataError(f"{usable} rows have a {self.asked.response} that counts: a rehearsal needs {FEWEST}")
        if not len(self._dealt):
            raise DataError(f"{usable} rows, of which {self.held_out:.0%} are held out, do not fill the devices")

    def report(self) -> Figures:
        """The measures on the held-out rows, also without noise and without a model, and the contributions needed."""
        curve = [{"contributions": moment} | self._scores(row) for moment, row in self._learnt(noisy=True)]
        quiet = self._scores(self._learnt(noisy=False)[-1][1])
        mean = self._examples[1][self._parts[0]].mean(axis=0)
        baseline = self._compared(np.broadcast_to(mean, self._measured[1].shape))
        name = "accuracy" if isinstance(self.asked.predicted, BooleanField | CategoryField) else "rmse"
        better = -1 if name == "rmse" else 1
        gains = [(look["contributions"], better * (look[name] - baseline[name])) for look in curve]
        unused = Ledger.in_memory(budget=Policy().budget, relation=RELATION)
        with Device(self.table, ledger=unused) as device:
            fit = device.check(self.asked)
        return {
            "measure": name,
            "metrics": {key: value for key, value in curve[-1].items() if key != "contributions"},
            "baseline": baseline,
            "without_noise": quiet,
            "contributions_needed": _enough(gains),
            "curve": curve,
            "contributions": self.contributions,
            "devices": len(self._dealt),
            "examples_of_a_device": self._dealt.shape[1],
            "rows": {"learnt_from": self._dealt.size, "held_out": len(self._parts[1])},
            "weights": self.asked.size,
            "epsilon": self.asked.epsilon,
            "contributions_of_a_device": self.contributions / len(self._dealt),
            "promise": self.asked.describe(),
            "fit": {"examples": fit.examples, "usable": fit.usable, "problems": list(fit.problems)},
        }

    def _learnt(self, *, noisy: bool) -> list[tuple[int, Floats]]:
        """The weights for predictions, after each number of contributions on the curve."""
        asked, random = self.asked, self._randomness
        noisy = noisy and asked.noise != "none"
        coins = draw_and_discard(
            instances=asked.instances, updates=self.contributions, randomness=random, merge=asked.merge
        )
        pool = Pool.initial(
            np.zeros(asked.size),
            instances=asked.instances,
            update_variance=asked.update_variance if noisy else 0.0,
            randomness=random,
            merge=asked.merge,
        )
        chosen = random.stream("devices").bits(self.contributions) % np.uint64(len(self._dealt))
        updates = Updates(
            gradients=self._gradients,
            mechanism=asked.mechanism,
            devices=chosen.astype(np.int64),
            rates=gammas(asked, coins.seen),
            noise=seeded_noise(asked.mechanism, random) if noisy else None,
            largest=asked.largest,
        )
        moments = sorted({round(look) for look in np.geomspace(min(10, self.contributions), self.contributions, LOOKS)})
        weights = simulate(updates, coins, start=pool.instances, moments=moments)
        return list(zip(moments, weights.astype(np.float64), strict=True))

    def _scores(self, weights: Floats) -> Figures:
        return self._compared(np.asarray(self.asked.model.predict(weights, self._measured[0]), np.float64))

    def _compared(self, predicted: Floats) -> Figures:
        responses, response = self._measured[1], self.asked.predicted
        if not isinstance(response, BooleanField | CategoryField):
            error, scatter = float(np.square(predicted - responses).mean()), float(responses.var())
            return {
                "rmse": (response.high - response.low) * math.sqrt(error),
                "r2": 1 - error / scatter if scatter else 0.0,
            }
        likely = np.clip(predicted, 1e-12, 1 - 1e-12)
        if isinstance(response, CategoryField):
            right = predicted.argmax(axis=1) == responses.argmax(axis=1)
            return {"accuracy": float(right.mean()), "loss": float(-(responses * np.log(likely)).sum(axis=1).mean())}
        right = (predicted > 0.5) == (responses > 0.5)
        losses = responses * np.log(likely) + (1 - responses) * np.log(1 - likely)
        return {
            "accuracy": float(right.mean()),
            "loss": float(-losses.mean()),
            "roc_auc": roc_auc(responses[:, 0] > 0.5, predicted[:, 0]),
        }

    @cached_property
    def _randomness(self) -> SeededRandomness:
        return SeededRandomness(self.seed)

    @cached_property
    def _examples(self) -> tuple[csr_array, Floats]:
        return self.asked.encode(self.table)

    @cached_property
    def _parts(self) -> tuple[Integers, Integers]:
        """The rows to learn from, and the held-out rows."""
        count = len(self._examples[1])
        order = np.argsort(self._randomness.stream("held out").bits(count), kind="stable")
        measured = max(1, round(self.held_out * count))
        return order[measured:], order[:measured]

    @cached_property
    def _dealt(self) -> Integers:
        """The rows of each device, [devices, examples]."""
        learnt = self._parts[0]
        each = min(self.asked.examples, len(learnt) // (self.devices or 1))
        if not each:
            return np.empty((0, 0), np.int64)
        return split_among_devices(len(learnt), per_device=each, order=learnt)[: self.devices]

    @cached_property
    def _measured(self) -> tuple[csr_array, Floats]:
        features, responses = self._examples
        return features[self._parts[1]], responses[self._parts[1]]

    @cached_property
    def _gradients(self) -> GlmGradients:
        (features, responses), model = self._examples, self.asked.model
        inputs, rows = with_intercept(features, intercept=model.intercept), self._dealt
        wide = features.shape[1] > WIDE
        return GlmGradients(model, [inputs[own] for own in rows] if wide else inputs.toarray()[rows], responses[rows])


def _enough(gains: Sequence[tuple[int, float]]) -> int | None:
    """The first number of contributions from which on nearly all is gained; None without a gain."""
    needed = None
    for moment, gain in reversed(gains):
        if not gain >= NEEDED * gains[-1][1] > 0:
            break
        needed = moment
    return needed
