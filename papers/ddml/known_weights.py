"""A model whose weights are known, as in Pihur et al. (2018), section V-C: figure 5, and how fast one gets there.

Devices hold examples of six fields. The server alone states which model of them it wants: main effects and all crosses
of two, 33 weights. The paper does not say how the fields are distributed; here they are so that the truth is positive
as often as there, about 46 %.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from harness import checks
from harness.arrays import Floats, Integers
from incrowd.drawdiscard import Specification
from incrowd.types import Stream

FORMULA = "O ~ (B + E1 + E2 + D + I) ** 2"
FIELDS: Mapping[str, object] = MappingProxyType(
    {
        "O": {"type": "boolean"},
        "B": {"type": "boolean"},
        "E1": {"type": "category", "levels": ["A", "B", "C"], "baseline": "C"},
        "E2": {"type": "category", "levels": ["a", "b", "c", "d"], "baseline": "d"},
        "D": {"type": "number", "low": 0.0, "high": 3.0},
        "I": {"type": "integer", "low": 0, "high": 5},
    }
)

INTERCEPT = 0.34
TRUTH: Mapping[str, float] = MappingProxyType(
    {
        "B": -1.18, "E1=A": 1.05, "E1=B": 1.6, "E2=a": -1.51, "E2=b": 0.72, "E2=c": 1.36, "D": -1.41,
        "I": -1.67, "B:E1=A": -1.14, "B:E1=B": 1.3, "B:E2=a": 1.72, "B:E2=b": 0.18, "B:E2=c": -1.52,
        "B:D": 1.72, "B:I": -1.17, "E1=A:E2=a": -0.12, "E1=A:E2=b": -0.53, "E1=A:E2=c": 1.0,
        "E1=B:E2=a": -0.42, "E1=B:E2=b": -1.64, "E1=B:E2=c": -1.53, "E1=A:D": 0.64, "E1=B:D": 0.48,
        "E1=A:I": -0.17, "E1=B:I": 0.44, "E2=a:D": -0.51, "E2=b:D": -0.68, "E2=c:D": 1.65, "E2=a:I": 0.51,
        "E2=b:I": -1.64, "E2=c:I": 0.57, "D:I": -0.8,
    }
)  # fmt: skip  # 32 lines say no more
"""The paper's weights. Its second row of B with E2 has to be D with E2: only then there are all crosses, and no pair
twice."""

_OFTEN_B = 0.3
_OFTEN_E2 = (0.25, 0.25, 0.375, 0.125)
_MEAN_I = 2.0


def specification(*, gamma: float = 0.005, instances: int = 30, examples: int = 10) -> Specification:
    """What the server states; no noise, as in the paper, but a pool that begins as wide as for epsilon 1."""
    keys: dict[str, object] = {
        "name": "known weights",
        "fields": dict(FIELDS),
        "link": "logistic",
        "gamma": gamma,
        "clip": 1.0,
        "epsilon": 1.0,
        "noise": "none",
        "privacy": "feature",
        "instances": instances,
        "examples": examples,
    }
    return Specification.from_formula(FORMULA, **keys)


def truth(stated: Specification) -> Floats:
    """The true weights in the order of a specification's."""
    return np.array([INTERCEPT, *(TRUTH[name] for name in stated.columns)])


@dataclass(frozen=True, kw_only=True, eq=False)
class Population:
    """Examples of many devices, a number a value: levels by their place, `level` 0 being the first one's."""

    b: Integers
    e1: Integers
    e2: Integers
    d: Floats
    i: Integers
    o: Integers

    @classmethod
    def sample(cls, size: int, stream: Stream) -> "Population":
        """So many examples; the outcome has the probability that the true weights give it."""
        checks.count(size=size)
        b, e1, e2, d, i, outcome = (stream.bits(6 * size) / 2.0**64).reshape(6, size)
        drawn = cls(
            b=(b < _OFTEN_B).astype(np.int64),
            e1=(3 * e1).astype(np.int64),
            e2=np.searchsorted(np.cumsum(_OFTEN_E2)[:-1], e2, side="right"),
            d=3 * d,
            i=np.searchsorted(_poisson_steps(_MEAN_I, most=5), i, side="right"),
            o=np.zeros(size, np.int64),
        )
        chances = expit(drawn.features() @ truth(specification())[1:] + INTERCEPT)
        return replace(drawn, o=(outcome < chances).astype(np.int64))

    def features(self) -> Floats:
        """The features of `specification`, for all examples at once: the same as `Specification.encode` of `rows`."""
        e1 = (self.e1[:, None] == np.arange(2)).astype(np.float64)
        e2 = (self.e2[:, None] == np.arange(3)).astype(np.float64)
        fields = [self.b[:, None].astype(np.float64), e1, e2, self.d[:, None] / 3, self.i[:, None] / 5]
        crosses = [_crossed(one, other) for place, one in enumerate(fields) for other in fields[place + 1 :]]
        return np.concatenate([*fields, *crosses], axis=1)

    def rows(self) -> list[dict[str, Any]]:
        """The same as the rows of a device's table."""
        columns = (self.o, self.b, self.e1, self.e2, self.d, self.i)
        return [
            {"O": o, "B": b, "E1": "ABC"[e1], "E2": "abcd"[e2], "D": d, "I": i}
            for o, b, e1, e2, d, i in zip(*(column.tolist() for column in columns), strict=True)
        ]


def _crossed(first: Floats, second: Floats) -> Floats:
    return (first[:, :, None] * second[:, None, :]).reshape(len(first), -1)


def _poisson_steps(mean: float, *, most: int) -> NDArray[np.float64]:
    """The probabilities of at most 0, 1, .. most - 1."""
    return np.cumsum([math.exp(-mean) * mean**number / math.factorial(number) for number in range(most)])
