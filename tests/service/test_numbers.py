"""The browser's modules compute what Python computes: features and gradients within 1e-12, releases to the last bit."""

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd.drawdiscard import Specification
from incrowd.drawdiscard.fields import TableField
from incrowd.privacy.mechanism.whole_noise import WholeLaplace, discrete_laplace

NODE = shutil.which("node")
SCRIPT = Path(__file__).with_name("numbers.mjs")
LETTERS = "abz AZ09-_./:?#@&=,\t ß é 漢 😀 www.co.uk http:// login"
URLS = ("http://me@WWW.shop.co.uk:80/a/b?q=1#x", "a.b", "", "://", "HTTPS://x", "ftp://a.b.c/?#", "é.漢/😀")
FIELDS: dict[str, dict[str, object]] = {
    "y": {"type": "boolean"},
    "number": {"type": "number", "low": -1.5, "high": 2.25},
    "whole": {"type": "integer", "low": -3, "high": 7},
    "yes": {"type": "boolean"},
    "level": {"type": "category", "levels": ["a", "7", "é", "b"], "baseline": "b"},
    "hashed": {"type": "hashed", "buckets": 7, "column": "level"},
    "listed": {"type": "list", "levels": ["a", "b", "漢"], "most": 2, "column": "text"},
    "bucketed": {"type": "list", "buckets": 5, "separator": "/", "column": "url"},
    "text": {"type": "text", "buckets": 11, "units": "characters", "shortest": 1, "longest": 3, "most": 4},
    "spoken": {"type": "text", "buckets": 9, "longest": 2, "column": "text", "lower": False},
    "ends": {"type": "words", "words": ["/", "a", "1"], "where": "end", "column": "url"},
    "any": {"type": "words", "words": ["shop", "é"], "any": True, "column": "url", "part": "host"},
    "each": {"type": "count", "characters": "a/é😀", "each": True, "most": 3, "column": "url"},
    "run": {"type": "count", "characters": "az", "run": True, "most": 3, "column": "text"},
    "long": {"type": "count", "steps": [1, 5, 20], "column": "text"},
    **{
        part: {"type": "text", "buckets": 13, "part": part, "units": "characters", "column": "url"}
        for part in ("scheme", "host", "name", "inner", "ending", "port", "path", "query", "fragment", "rest")
    },
}


def value(draw: random.Random, column: str) -> Any:
    odd = [None, True, False, 0, -1, 7, 2**53, -(2**53), 1.0, -0.0, 2.5, -2.5, 0.5, 1e300, 3.25, "", "7", "yes"]
    if draw.random() < 0.3:
        return draw.choice(odd)
    if column == "url":
        return draw.choice(URLS)
    if column == "text":
        text = "".join(draw.choices(LETTERS, k=draw.randrange(30)))
        return text.split() if draw.random() < 0.2 else text
    return draw.choice(["a", "b", "é", "7", 7, 7.0]) if column == "level" else round(draw.uniform(-5, 9), 2)


def learning_case(draw: random.Random) -> dict[str, Any]:
    link = draw.choice(["linear", "logistic", "multinomial", "poisson"])
    response = "kind" if link == "multinomial" else draw.choice(["y", "count"])
    fields = {
        **FIELDS,
        "kind": {"type": "category", "levels": ["x", "y", "3"], "baseline": None},
        "count": {"type": "integer", "low": 0, "high": 5},
    }
    names = draw.sample(list(FIELDS)[1:], 6)
    terms = [[names[0]], [names[1], names[2]], [names[3]], [names[4], names[5]]]
    asked = Specification.of(
        {"name": "case", "fields": fields, "response": response, "terms": terms, "link": link}
        | {"gamma": 0.1, "clip": 1.0, "epsilon": 1.0, "intercept": draw.random() < 0.8, "largest": None}
    )
    columns = {field.column or name for name, field in asked.fields.items()}
    rows = [{column: value(draw, column) for column in sorted(columns)} for _ in range(draw.choice([0, 1, 10]))]
    for row in rows:
        row |= {"kind": draw.choice(["x", "y", 3, "z", None]), "y": draw.choice([0, 1, None, "no", 1.5])}
    weights = [float(np.float32(draw.gauss(0, 2))) for _ in range(asked.size)]
    return {"specification": json.loads(asked.to_json()), "rows": rows, "weights": weights}


def noise_case(draw: random.Random) -> dict[str, Any]:
    size, joint = draw.choice([1, 3, 40]), draw.random() < 0.5
    mechanism = {
        "size": size,
        "clip": draw.choice([1e-6, 0.1, 1.0, 3.7, 1e6]),
        "epsilon": draw.choice([1e-3, 0.1, 1.0, 8.0, 300.0]),
        "distances": 1 if joint else size,
        "joint": joint,
    }
    gradient = [draw.gauss(0, 1) * draw.choice([1e-9, 0.1, 1, 1e6, 1e300]) for _ in range(size)]
    words = [draw.getrandbits(32) for _ in range(8192)]
    weights = [float(np.float32(draw.gauss(0, 1))) for _ in range(size)]
    return {
        "mechanism": mechanism,
        "gradient": gradient,
        "weights": weights,
        "gamma": draw.uniform(0, 2),
        "words": words,
    }


class Listed:
    """A stream of words that are given."""

    def __init__(self, words: list[int]) -> None:
        self._words, self._at = np.array(words, "<u4").view("<u8"), 0

    def bits(self, size: int) -> Any:
        places = np.arange(self._at, self._at + size) % len(self._words)
        self._at += size
        return self._words[places]


def in_node(tmp_path: Path, learning: list[dict[str, Any]], noise: list[dict[str, Any]]) -> dict[str, Any]:
    if NODE is None:
        why = "there is no node here to run the browser's modules: apt-get install nodejs"
        (pytest.fail if os.environ.get("INCROWD_ALL_TESTS") else pytest.skip)(why)
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps({"learning": learning, "noise": noise}), encoding="utf-8")
    done = subprocess.run([NODE, SCRIPT, cases], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_features_and_gradients(tmp_path: Path) -> None:
    draw = random.Random(5)  # noqa: S311 - cases for a test
    cases, moved = [learning_case(draw) for _ in range(60)], 0
    for case, found in zip(cases, in_node(tmp_path, cases, [])["learned"], strict=True):
        asked = Specification.from_json(json.dumps(case["specification"]))
        table = {
            name: [row.get(name) for row in case["rows"]]
            for name in {field.column or name for name, field in asked.fields.items()}
        }
        dense = np.zeros((len(case["rows"]), asked.size))
        for row, pairs in zip(dense, found["features"], strict=True):
            for place, number in pairs:
                assert row[place] == 0
                row[place] = number
        expected = asked.features(table, count=len(case["rows"]))
        assert found["size"] == asked.size
        np.testing.assert_array_equal(dense[:, : expected.shape[1]], expected)
        features, responses = asked.encode(table)
        gradient = asked.kept(asked.model.gradient(np.array(case["weights"]), features, responses))
        np.testing.assert_allclose(found["gradient"], gradient, rtol=1e-12, atol=1e-12)
        moved += bool(gradient.any())
    assert moved > len(cases) / 3


@pytest.mark.slow
def test_releases(tmp_path: Path) -> None:
    draw = random.Random(6)  # noqa: S311 - cases for a test
    cases = [noise_case(draw) for _ in range(80)]
    for case, found in zip(cases, in_node(tmp_path, [], cases)["released"], strict=True):
        whole = WholeLaplace.fitting(**case["mechanism"])
        within = whole.bounded(np.array(case["gradient"]))
        noise = discrete_laplace(whole.scale, size=whole.size, stream=Listed(case["words"]))  # type: ignore[arg-type]  # all that is drawn are bits
        steps = np.add(within, noise)
        assert (found["exponent"], found["bound"], found["scale"]) == (whole.exponent, whole.bound, whole.scale)
        assert found["within"] == within.tolist()
        assert found["steps"] == steps.tolist()
        weights = np.array(case["weights"], np.float32)
        sent = (weights - (case["gamma"] * whole.step) * steps.astype(np.float64)).astype("<f4")
        assert found["bytes"] == sent.tobytes().hex()


def test_every_key_of_a_specification_is_known_to_a_browser() -> None:
    text = SCRIPT.parents[2].joinpath("incrowd/service/static/learn.mjs").read_text(encoding="utf-8")
    keys = text[text.index("const KEYS") : text.index("const PREDICTED")]
    for key in Specification.model_fields:
        assert f'"{key}"' in keys
    for kind in TableField.__args__:
        for key in kind.model_fields:
            assert key in ("type", "column") or f'"{key}"' in keys
