"""What the rounds of a federation find out together in which nobody learns: before it, how frequent classes are, a
choice, a centre; after it, how strongly the model should speak.

Each is a round of the plan, noised and charged as any other. What it finds is public, and goes to the clients with the
weights: one vector of all is what they start a round with.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.learning.calibration import NOW, Strength
from incrowd.learning.centre import Centre
from incrowd.learning.choice import BOTH, PICTURES, PIXELS, KindChoice
from incrowd.learning.class_shares import ClassShares
from incrowd.learning.losses import Loss, OutputShape
from incrowd.learning.models import Model
from incrowd.learning.paths.path import MakePath
from incrowd.learning.store import ClientTensors
from incrowd.settings.local import Local

Sought = ClassShares | KindChoice | Centre

_MADE_UP = 4  # examples: two of a class, and two of another


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What is sought, in the order of the rounds, for a model of `weights` numbers; with a `calibration` the last round
    is for that.

    Guarantee: whatever was found, a model of the prepared examples and `published` of it give the same outputs, but for
    the strength and for what is known of how frequent classes are.
    """

    weights: int
    sought: tuple[Sought, ...]
    calibration: Strength | None = None

    @classmethod
    def of(
        cls, model: Model, data: ClientTensors, local: Local, *, loss: Loss, outputs: OutputShape
    ) -> "Opening | None":
        """What these settings seek, or None. Edge cases: see `ClassShares.of`, `KindChoice.of`, `Centre.of` and
        `Strength.of`.
        """
        sought: list[Sought] = []
        if local.class_shares is not None:
            sought.append(ClassShares.of(model, data, local, loss=loss, outputs=outputs))
        if local.choice is not None:
            sought.append(KindChoice.of(model, data, loss=loss))
        if local.centre is not None:
            sought.append(Centre.of(model, data, length=local.centre_length))
        if not sought:
            return None
        calibration = None if local.calibration is None else Strength.of(model, data)
        return cls(weights=model.size, sought=tuple(sought), calibration=calibration)

    @property
    def rounds(self) -> int:
        """How many rounds it takes before anybody learns."""
        return len(self.sought)

    @property
    def closing(self) -> int:
        """How many it takes afterwards."""
        return int(self.calibration is not None)

    @property
    def beside(self) -> int:
        """How many numbers there are beside the weights: the last is the strength, where it is asked for."""
        return sum(one.size for one in self.sought) + self.closing

    @property
    def size(self) -> int:
        """How many numbers a round starts with."""
        return self.weights + self.beside

    def start(self, weights: Floats) -> Floats:
        """What the first round starts with: the weights, and nothing found."""
        return np.concatenate([weights, np.zeros(self.beside)])

    def learnt(self, start: Floats, number: int, mean: Floats, noise_std: float) -> Floats:
        """The same weights with what the round of this number found: the released mean and its noise are in units of
        the bound.
        """
        found = start.copy()
        for place, (one, where) in enumerate(self._places()):
            if place == number:
                found[where] = one.learnt(mean, noise_std)
        return found

    def published(self, start: Floats) -> Floats:
        """The weights of the model that takes examples as they are."""
        weights = start[: self.weights]
        if self.calibration is not None:
            weights = self.calibration.published(weights, float(start[-1]))
        for one, where in reversed(list(self._places())):
            weights = one.published(weights, start[where])
        return weights

    def divided(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and what is beside them, from one vector of both."""
        if start.shape != (self.size,):
            remedy = f"give one vector of {self.size} numbers, weights and what was found before"
            raise ConfigError(field="weights", value=tuple(start.shape), remedy=remedy)
        return start[: self.weights], start[self.weights :]

    def asked_now(self, beside: Tensor, round: int) -> MakePath | None:
        """What clients say in the round of this number, which starts with this beside the weights; None if they learn.

        It is the start itself that says which round is the last: no client knows it beforehand.
        """
        if self.calibration is not None and float(beside[-1]) == NOW:
            return partial(self.calibration.path, known=self._known(beside))
        return self.sought[round].path if round < self.rounds else None

    def prepared(self, data: ClientTensors, beside: Tensor, *, before: int) -> ClientTensors:
        """The data as they are in the round of this number, by what the rounds before it found: of each example a
        function of itself alone, and where clients learn, or judge, those that are for that. Where classes are equally
        frequent they learn from all, because how strongly the model speaks changes no answer of it.
        """
        beside = beside.to(data.device)
        for one, where in list(self._places())[:before]:
            data = one.prepared(data, beside[where.start - self.weights : where.stop - self.weights])
        if self.calibration is None or before < self.rounds or not self._shares(beside)[1].any():
            return data
        return self.calibration.heard(data, now=float(beside[-1]) == NOW)

    def chosen(self, start: Floats) -> str | None:
        """As what examples are seen since the choice: "pictures", "pixels", "both"; None where a round was lost."""
        for one, where in self._places():
            if isinstance(one, KindChoice):
                return {PICTURES: "pictures", PIXELS: "pixels", BOTH: "both"}.get(float(start[where][0]))
        return None

    def strength(self, start: Floats) -> float | None:
        """How strongly the model speaks since clients were asked; None where they were not, or were not heard."""
        return float(start[-1]) if self.calibration is not None and start[-1] > 0 else None

    def made_up(self, data: ClientTensors) -> ClientTensors:
        """A client with a few examples like these, all zeros, of as many classes as it takes to be asked everything."""
        nobody = data.made_up(_MADE_UP)
        if any(isinstance(one, KindChoice) for one in self.sought):
            nobody.labels[::2] = 1
        return nobody

    def _known(self, beside: Tensor) -> Tensor:
        """What was found of how frequent classes are, as what it adds to outputs."""
        shares, found = self._shares(beside)
        return shares.everyones(found)

    def _shares(self, beside: Tensor) -> tuple[ClassShares, Tensor]:
        """What was found of how frequent classes are; where a calibration is, it is sought."""
        shares, where = next((one, where) for one, where in self._places() if isinstance(one, ClassShares))
        return shares, beside[where.start - self.weights : where.stop - self.weights]

    def _places(self) -> Iterator[tuple[Sought, slice]]:
        """What is sought, and where what was found lies."""
        begin = self.weights
        for one in self.sought:
            yield one, slice(begin, begin + one.size)
            begin += one.size
