"""Writes the vectors that devices in other languages are checked with, in incrowd/service/static/vectors.json.

`--check` only says whether that would change anything. They come in stages: how fine the steps are, what noise some
words make, what is released of a gradient, all exactly; and the features and the gradient of a specification, within
1e-12. What they mean, and how to read them, is in docs/devices.md.
"""

import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from incrowd._random import Bits, Floats, Integers
from incrowd.drawdiscard import Specification
from incrowd.drawdiscard.device import stepped
from incrowd.drawdiscard.fields import known
from incrowd.privacy.mechanism.device import Mechanism
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.mechanism.whole_noise import ChosenDirection, WholeLaplace, discrete_laplace, random_words
from scripts._common import ROOT, finish

FILE = ROOT / "incrowd/service/static/vectors.json"
VERSION = 1


class Counted:
    """The words of the vectors: SHA-256 of a seed and a counter, as docs/devices.md has it."""

    def __init__(self, seed: bytes) -> None:
        self._seed, self._counter, self._left = seed, 0, b""

    def bits(self, size: int) -> Bits:
        """See `Stream.bits`."""
        while len(self._left) < 8 * size:
            self._left += hashlib.sha256(self._seed + self._counter.to_bytes(8, "little")).digest()
            self._counter += 1
        taken, self._left = self._left[: 8 * size], self._left[8 * size :]
        return np.frombuffer(taken, "<u8").astype(np.uint64)

    def normals(self, size: int) -> Floats:
        """No vector needs them."""
        raise NotImplementedError

    laplaces = normals


STEPS: Sequence[Mapping[str, Any]] = (
    {"size": 387, "clip": 0.1, "epsilon": 2.0, "privacy": "model", "bound": "element"},
    {"size": 387, "clip": 0.1, "epsilon": math.log(32), "privacy": "feature", "bound": "element"},
    {"size": 387, "clip": 1.0, "epsilon": 8.0, "privacy": "model", "bound": "norm"},
    {"size": 50_000, "clip": 0.3, "epsilon": 1.0, "privacy": "model", "bound": "element"},
    {"size": 1, "clip": 2.0**-40, "epsilon": 1e6, "privacy": "model", "bound": "element"},
    {"size": 3, "clip": 1e20, "epsilon": 0.1, "privacy": "model", "bound": "norm"},
    {"size": 7, "clip": 1e-6, "epsilon": 1e-3, "privacy": "feature", "bound": "element"},
    {"size": 1, "clip": 0.5, "epsilon": 1e9, "privacy": "feature", "bound": "element"},
    {"size": 9_999_999, "clip": 0.7, "epsilon": 3.3, "privacy": "model", "bound": "element"},
    {"size": 1, "clip": 1e-13, "epsilon": 1.0, "privacy": "model", "bound": "element"},
    {"size": 10_000, "clip": 0.1, "epsilon": 1e-6, "privacy": "model", "bound": "element"},
)
SCALES = (1, 2, 3, 1000, 3_872_745, 3 * 2**29, 2**31 - 1)


def vectors() -> dict[str, object]:
    """All of them."""
    return {
        "version": VERSION,
        "steps": [_steps(keys) for keys in STEPS],
        "noise": [_noise(scale) for scale in SCALES],
        "releases": [_release(name, keys) for name, keys in _releases().items()],
        "directions": [_direction(name, **case) for name, case in _directions().items()],
        "gradients": [_gradient(name, *case, intercept="without" not in name) for name, case in _gradients().items()],
    }


def written() -> str:
    """The text of the file: one vector a line."""
    stages = [f'"version": {VERSION}']
    for name, cases in vectors().items():
        if isinstance(cases, list):
            lines = ",\n".join(json.dumps(case, separators=(",", ":"), allow_nan=False) for case in cases)
            stages.append(f'"{name}": [\n{lines}\n]')
    return "{\n" + ",\n".join(stages) + "\n}\n"


def _mechanism(keys: Mapping[str, Any]) -> WholeLaplace | None:
    """The whole numbers of a mechanism; None where none fit."""
    try:
        return Mechanism(**keys).whole
    except ValueError:
        return None


def _steps(keys: Mapping[str, Any]) -> dict[str, object]:
    whole = _mechanism(keys)
    found = None if whole is None else {"exponent": whole.exponent, "bound": whole.bound, "scale": whole.scale}
    return {**keys, "expected": found}


def _noise(scale: int) -> dict[str, object]:
    seed = f"noise of scale {scale}"
    drawn = discrete_laplace(scale, size=40, stream=Counted(seed.encode()))
    return {"scale": scale, "seed": seed, "expected": drawn.tolist()}


def _releases() -> dict[str, dict[str, Any]]:
    draw = np.random.default_rng(5)
    whole = {"clip": 0.1, "epsilon": 2.0, "privacy": "model"}
    odd = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e308, -1e300, 7.0, 0.1, -0.1, 0.1000001]
    halves = [number / 2**32 for number in (1, 3, -1, -5, 6, 7)]
    return {
        "numbers that are none, and extreme ones": {**whole, "bound": "element", "gradient": odd},
        "the same under a norm": {**whole, "bound": "norm", "gradient": odd},
        "halves of a step": {"clip": 0.25, "epsilon": 1.0, "privacy": "feature", "bound": "element"}
        | {"gradient": [number / 2**31 for number in (0.5, 1.5, -0.5, -2.5, 3.0, -3.5)]},
        "within a norm": {**whole, "clip": 1.0, "bound": "norm", "gradient": halves},
        "beyond a norm": {**whole, "clip": 1.0, "bound": "norm", "gradient": draw.normal(size=33).tolist()},
        "as usual": {**whole, "bound": "element", "gradient": draw.normal(scale=0.1, size=60).tolist()},
    }


def _release(name: str, keys: Mapping[str, Any]) -> dict[str, object]:
    gradient = np.array(keys["gradient"], np.float64)
    draw = np.random.default_rng(len(gradient))
    weights, gamma = draw.normal(size=len(gradient)).astype(np.float32), 0.05
    stated = {key: keys[key] for key in ("clip", "epsilon", "privacy", "bound")}
    whole = Mechanism(size=len(gradient), **stated).whole
    bounded = whole.bounded(gradient)
    released: Integers = bounded + discrete_laplace(whole.scale, size=whole.size, stream=Counted(name.encode()))
    answer = stepped(weights, Whole(released, whole.step), gamma=gamma)
    return {
        "name": name,
        "mechanism": {"size": len(gradient), **stated},
        "gradient": gradient.astype("<f8").tobytes().hex(),
        "seed": name,
        "weights": weights.astype("<f4").tobytes().hex(),
        "gamma": gamma,
        "bounded": bounded.tolist(),
        "released": released.tolist(),
        "answer": answer.astype("<f4").tobytes().hex(),
    }


def _directions() -> dict[str, dict[str, Any]]:
    draw = np.random.default_rng(6)
    odd = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e308, -1e300, 7.0, 0.1, -0.1, 0.1000001]
    return {
        "as usual": {"clip": 1.0, "epsilon": 2.0, "gradient": draw.normal(size=60).tolist()},
        "as many weights as bits of a seed": {"clip": 1.0, "epsilon": 3.5, "gradient": draw.normal(size=20).tolist()},
        "more than one word of signs": {"clip": 0.3, "epsilon": 8.0, "gradient": draw.normal(size=53).tolist()},
        "one weight": {"clip": 5.0, "epsilon": 0.1, "gradient": [-1.0]},
        "numbers that are none, and extreme ones": {"clip": 1e-6, "epsilon": 1.0, "gradient": odd},
        "nothing to point along": {"clip": 1e6, "epsilon": 70.0, "gradient": [0.0, -0.0, 1e-200]},
    }


def _direction(name: str, *, clip: float, epsilon: float, gradient: Sequence[float]) -> dict[str, object]:
    given = np.array(gradient, np.float64)
    choice = ChosenDirection.fitting(size=len(given), clip=clip, epsilon=epsilon)
    weights, gamma = np.random.default_rng(len(given)).normal(size=len(given)).astype(np.float32), 0.05
    bounded, seeds = choice.bounded(given), [f"{name} {number}" for number in range(3)]
    words = [random_words(Counted(seed.encode()), choice.candidates) for seed in seeds]
    released = [choice.steps_of(choice.named(bounded, word)) for word in words]
    answer = stepped(weights, Whole(released[0], choice.step), gamma=gamma)
    return {
        "name": name,
        "mechanism": {"size": len(given), "clip": clip, "epsilon": epsilon},
        "choice": {key: getattr(choice, key) for key in ("exponent", "length", "loss", "candidates")},
        "gradient": given.astype("<f8").tobytes().hex(),
        "seeds": seeds,
        "weights": weights.astype("<f4").tobytes().hex(),
        "gamma": gamma,
        "bounded": bounded.tolist(),
        "released": [steps.tolist() for steps in released],
        "answer": answer.astype("<f4").tobytes().hex(),
    }


FIELDS: Mapping[str, Mapping[str, object]] = {
    "opened": {"type": "boolean"},
    "kind": {"type": "category", "levels": ["mail", "chat", "7"]},
    "count": {"type": "integer", "low": 0, "high": 5},
    "score": {"type": "number", "low": -1.5, "high": 2.25},
    "sender": {"type": "category", "levels": ["friend", "shop", "bänk"], "baseline": "shop"},
    "town": {"type": "hashed", "buckets": 7},
    "tags": {"type": "list", "levels": ["a", "b", "漢"], "most": 2},
    "marks": {"type": "list", "buckets": 5, "separator": "/", "column": "address"},
    "grams": {"type": "text", "buckets": 11, "units": "characters", "shortest": 1, "longest": 3, "most": 4}
    | {"column": "subject"},
    "spoken": {"type": "text", "buckets": 9, "longest": 2, "column": "subject", "lower": False},
    "ends": {"type": "words", "words": ["/", "a", "1"], "where": "end", "column": "address"},
    "shop": {"type": "words", "words": ["shop", "é"], "any": True, "column": "address", "part": "host"},
    "letters": {"type": "count", "characters": "a/é\U0001d4b3", "each": True, "most": 3, "column": "address"},
    "run": {"type": "count", "characters": "az", "run": True, "most": 3, "column": "subject"},
    "long": {"type": "count", "steps": [1, 5, 20], "column": "subject"},
    **{
        f"of_{part}": {"type": "text", "buckets": 6, "part": part, "units": "characters", "column": "address"}
        for part in ("scheme", "host", "name", "inner", "ending", "port", "path", "query", "fragment", "rest")
    },
}
ROWS: Sequence[Mapping[str, object]] = (
    {"opened": 1, "kind": "mail", "count": 2, "score": 0.5, "sender": "friend", "town": "Köln", "tags": "a, b ,c"}
    | {"address": "http://me@WWW.shop.co.uk:80/a/b?q=1#x", "subject": "Hello, hello wörld"},
    {"opened": 0, "kind": "chat", "count": 9, "score": -7, "sender": "shop", "town": 7, "tags": ["b", "漢", "a"]}
    | {"address": "ftp://a.b.c/?#", "subject": ""},
    {"opened": 0.4, "kind": 7, "count": 2.5, "score": 1e300, "sender": "nobody", "town": None, "tags": ""}
    | {"address": "é.漢/\U0001d4b3", "subject": "zzaz AZ09 \U0001f600"},
    {"opened": None, "kind": "none", "count": None, "score": "0.5", "sender": 1, "town": 1.5, "tags": 3}
    | {"address": "", "subject": None},
    {"opened": "yes", "kind": None, "count": "3", "score": True, "sender": None, "town": 7.0, "tags": [None, " a "]}
    | {"address": "://", "subject": 12},
    {"opened": -3, "kind": "7", "count": 3.5, "score": 2.25, "sender": "bänk", "town": "", "tags": None}
    | {"address": "HTTPS://x", "subject": "a" * 5000},
)


def _gradients() -> dict[str, tuple[str, str, list[str]]]:
    """By name: link, response, and terms, with a colon where two are crossed."""
    names = [name for name in FIELDS if name not in ("opened", "kind", "count")]
    return {
        "logistic": ("logistic", "opened", ["score", "sender", "score:sender"]),
        "without an intercept": ("logistic", "opened", ["score", "count"]),
        "every field": ("logistic", "opened", names),
        "crosses of text": ("logistic", "opened", ["grams:town", "tags:of_host", "letters:long"]),
        "the largest numbers": ("logistic", "opened", names),
        "the largest numbers of classes": ("multinomial", "kind", ["score", "sender", "score:sender"]),
        "linear": ("linear", "count", ["score", "sender", "opened"]),
        "poisson": ("poisson", "count", ["score", "sender:town"]),
        "multinomial": ("multinomial", "kind", ["score", "sender", "tags"]),
        "of nothing but an intercept": ("multinomial", "kind", []),
    }


def _gradient(name: str, link: str, response: str, terms: list[str], *, intercept: bool) -> dict[str, object]:
    asked = Specification.of(
        {"name": name, "fields": FIELDS, "response": response, "terms": [term.split(":") for term in terms]}
        | {"link": link, "intercept": intercept, "gamma": 0.05, "clip": 0.2, "epsilon": 2.0}
        | ({"largest": 4} if "largest" in name else {"bound": "element", "largest": None})
    )
    draw = np.random.default_rng(asked.size)
    weights = draw.normal(size=asked.size).astype(np.float32)
    table = {column: [row.get(column) for row in ROWS] for column in asked.names}
    kept = known(asked.predicted, table[asked.names[0]])
    features, responses = asked.encode(table)
    gradient = asked.kept(asked.model.gradient(weights.astype(np.float64), features, responses))
    rows = features.toarray().tolist()
    return {
        "name": name,
        "specification": json.loads(asked.to_json()),
        "rows": ROWS,
        "usable": [place for place, known_here in enumerate(kept) if known_here],
        "repeats": asked.repeats,
        "weights": weights.astype("<f4").tobytes().hex(),
        "features": [[[place, value] for place, value in enumerate(row) if value] for row in rows],
        "gradient": gradient.tolist(),
    }


def stale(text: str) -> list[str]:
    """What of the file is not today's: exactly, but for gradients, whose last digits are the machine's."""
    today, found = json.loads(written()), json.loads(text)
    stages = sorted(today.keys() | found.keys())
    return [
        f"{stage}: run python -m scripts.vectors" for stage in stages if not _equal(today.get(stage), found.get(stage))
    ]


def _equal(today: Any, found: Any) -> bool:
    if isinstance(today, dict) and isinstance(found, dict):
        return today.keys() == found.keys() and all(
            np.allclose(today[key], found[key], rtol=1e-12, atol=1e-12)
            if key == "gradient" and isinstance(today[key], list)
            else _equal(today[key], found[key])
            for key in today
        )
    if isinstance(today, list) and isinstance(found, list):
        return len(today) == len(found) and all(_equal(*both) for both in zip(today, found, strict=True))
    return bool(today == found)


def main() -> None:
    """Write the file, or say whether it is today's."""
    if "--check" in sys.argv[1:]:
        finish(stale(FILE.read_text(encoding="utf-8")))
    FILE.write_text(written(), encoding="utf-8")


if __name__ == "__main__":
    main()
