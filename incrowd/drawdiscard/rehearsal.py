"""A rehearsal: what a specification would learn from a table, at its epsilon, before any device is asked."""

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
from incrowd.drawdiscard.device import Device, Fit
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

WIDE = 1_000
"""With more features than this, only those that are not zero are kept."""

LOOKS = 12
"""So many points has the curve."""

NEEDED = 0.95
"""Contributions are enough when this share of what all of them gain is gained."""

FEWEST = 10
"""Rows that a rehearsal needs at least."""

Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Rehearsal:
    """A specification, a table by column, and how many contributions devices would make of it.

    Of the rows a share is `held_out`, to measure with; the others are dealt to devices, each with as many as a
    contribution uses, or fewer where `devices` says so. Devices come at random, one after the other.

    Guarantee: pool, steps, noise, merging and averages are those of the protocol, simulated (`simulation.simulate`);
    the same arguments give the same report. Nothing is written anywhere.
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
        """The measures on the held-out rows, what they are without noise and without a model, and what it takes."""
        curve = [{"contributions": moment} | self._scores(row) for moment, row in self._learnt(noisy=True)]
        quiet = self._scores(self._learnt(noisy=False)[-1][1])
        baseline, name = self._baseline(), self.measure
        better = -1 if name == "rmse" else 1
        gains = [(look["contributions"], better * (look[name] - baseline[name])) for look in curve]
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
            "fit": {"examples": self.fit.examples, "usable": self.fit.usable, "problems": list(self.fit.problems)},
        }

    def final(self) -> Figures:
        """The measures on the held-out rows after all contributions."""
        return self._scores(self._learnt(noisy=True)[-1][1])

    @property
    def measure(self) -> str:
        """The measure that the curve is about: the more the better, but for an error."""
        return "accuracy" if isinstance(self.asked.predicted, BooleanField | CategoryField) else "rmse"

    @cached_property
    def fit(self) -> Fit:
        """What the owner of the table would hear from a device with the policy that devices have by default."""
        unused = Ledger.in_memory(budget=Policy().budget, relation=RELATION)
        with Device(self.table, ledger=unused) as device:
            return device.check(self.asked)

    def _learnt(self, *, noisy: bool) -> list[tuple[int, Floats]]:
        """The weights that predictions would use, after so many contributions."""
        noisy = noisy and self.asked.noise != "none"
        coins = draw_and_discard(
            instances=self.asked.instances,
            updates=self.contributions,
            randomness=self._randomness,
            merge=self.asked.merge,
        )
        pool = Pool.initial(
            np.zeros(self.asked.size),
            instances=self.asked.instances,
            update_variance=self.asked.update_variance if noisy else 0.0,
            randomness=self._randomness,
            merge=self.asked.merge,
        )
        moments = sorted({round(look) for look in np.geomspace(min(10, self.contributions), self.contributions, LOOKS)})
        weights = simulate(
            self._updates(gammas(self.asked, coins.seen), noisy=noisy),
            coins,
            start=pool.instances,
            moments=moments,
        )
        return list(zip(moments, weights.astype(np.float64), strict=True))

    def _updates(self, rates: Floats, *, noisy: bool) -> Updates:
        stream = self._randomness.stream("devices")
        return Updates(
            gradients=self._gradients,
            mechanism=self.asked.mechanism,
            devices=(stream.bits(self.contributions) % np.uint64(len(self._dealt))).astype(np.int64),
            rates=rates,
            noise=seeded_noise(self.asked.mechanism, self._randomness) if noisy else None,
            largest=self.asked.largest,
        )

    def _scores(self, weights: Floats) -> Figures:
        features, responses = self._measured
        predicted = np.asarray(self.asked.model.predict(weights, features), np.float64)
        return self._compared(predicted, responses)

    def _baseline(self) -> Figures:
        """The same measures where every row gets the mean of the rows to learn from."""
        mean = self._examples[1][self._parts[0]].mean(axis=0)
        responses = self._measured[1]
        return self._compared(np.broadcast_to(mean, responses.shape), responses)

    def _compared(self, predicted: Floats, responses: Floats) -> Figures:
        response = self.asked.predicted
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
        count = len(self._examples[1])
        order = np.argsort(self._randomness.stream("held out").bits(count), kind="stable")
        measured = max(1, round(self.held_out * count))
        return order[measured:], order[:measured]

    @cached_property
    def _dealt(self) -> Integers:
        learnt = self._parts[0]
        most = len(learnt) if self.devices is None else len(learnt) // self.devices
        each = min(self.asked.examples, most)
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
        inputs = with_intercept(features, intercept=model.intercept)
        if features.shape[1] > WIDE:
            return GlmGradients(model, [inputs[rows] for rows in self._dealt], responses[self._dealt])
        return GlmGradients(model, inputs.toarray()[self._dealt], responses[self._dealt])


def _enough(gains: Sequence[tuple[int, float]]) -> int | None:
    """From how many contributions on nearly all is gained; none where nothing is."""
    needed = None
    for moment, gain in reversed(gains):
        if not gain >= NEEDED * gains[-1][1] > 0:
            break
        needed = moment
    return needed
