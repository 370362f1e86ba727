"""The vectors for devices in other languages: today's Python makes them, and so do the browser's modules."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from incrowd.drawdiscard import Specification
from incrowd.drawdiscard.fields import TableField
from scripts import vectors

NODE = shutil.which("node")
SCRIPT = Path(__file__).with_name("vectors.mjs")
TEXT = vectors.FILE.read_text(encoding="utf-8")


def in_node(file: Path) -> list[str]:
    if NODE is None:
        assert not os.environ.get("INCROWD_ALL_TESTS"), "CI has a node: nothing is skipped there"
        pytest.skip("there is no node here to run the browser's modules")
    done = subprocess.run([NODE, SCRIPT, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_python_makes_the_vectors() -> None:
    assert vectors.stale(TEXT) == []


def test_the_browser_s_modules_make_the_vectors() -> None:
    assert in_node(vectors.FILE) == []


def test_every_key_of_a_specification_is_known_to_a_browser() -> None:
    text = SCRIPT.parents[2].joinpath("incrowd/service/static/learn.mjs").read_text(encoding="utf-8")
    keys = text[text.index("const KEYS") : text.index("const PREDICTED")]
    for key in Specification.model_fields:
        assert f'"{key}"' in keys
    for kind in TableField.__args__:
        for key in kind.model_fields:
            assert key in ("type", "column") or f'"{key}"' in keys


CHANGES: dict[str, tuple[str, Any]] = {
    "steps": ("expected", {"exponent": 26, "bound": 6710886, "scale": 2}),
    "noise": ("expected", [0] * 40),
    "releases": ("answer", "00" * 44),
    "directions": ("answer", "00" * 240),
    "gradients": ("gradient", None),
}


@pytest.mark.slow
@pytest.mark.parametrize("stage", CHANGES)
def test_control_what_is_changed_is_found(tmp_path: Path, stage: str) -> None:
    changed = json.loads(TEXT)
    key, value = CHANGES[stage]
    one = changed[stage][0]
    one[key] = [number + 1e-9 for number in one[key]] if value is None else value
    (tmp_path / "vectors.json").write_text(json.dumps(changed), encoding="utf-8")
    assert len(vectors.stale(json.dumps(changed))) == 1
    assert len(in_node(tmp_path / "vectors.json")) == 1


def test_all_fields_and_links_and_kinds_of_noise_are_there() -> None:
    found = json.loads(TEXT)
    types = {field["type"] for one in found["gradients"] for field in one["specification"]["fields"].values()}
    assert types == {"number", "integer", "boolean", "category", "hashed", "list", "text", "words", "count"}
    links = {one["specification"]["link"] for one in found["gradients"]}
    assert links == {"linear", "logistic", "multinomial", "poisson"}
    kinds = {(one["mechanism"]["privacy"], one["mechanism"]["bound"]) for one in found["releases"]}
    assert kinds == {("model", "element"), ("model", "norm"), ("feature", "element")}
    assert any(one["expected"] is None for one in found["steps"])
    assert len(TEXT) < 150_000
