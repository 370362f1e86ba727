"""Flower's actors as a line: real Ray, with nodes that answer, fail or are killed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("acting") / "answers.json"
    command = [sys.executable, "-m", "tests.flower.acting", str(file)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(file.read_text())
    return answers


def test_every_node_answers_always_from_the_same_actor(found: dict[str, Any]) -> None:
    first, again = found["first"], found["again"]
    assert {node: (words[0], words[2]) for node, words in first.items()} == {n: (n, "hello") for n in ("1", "2", "3")}
    assert {node: words[1] for node, words in first.items()} == {node: words[1] for node, words in again.items()}
    assert first["1"][1] == first["3"][1] != first["2"][1]


def test_whoever_waits_is_woken_by_an_answer(found: dict[str, Any]) -> None:
    assert found["seconds"] < 40  # it looks every 50


def test_a_node_that_fails_or_dies_stops_everything(found: dict[str, Any]) -> None:
    assert "a node's own words" in found["fail"]
    assert "a node failed" in found["die"]


def test_the_actors_end_with_the_block(found: dict[str, Any]) -> None:
    assert found["left"] == []


def test_no_room_for_an_actor_is_said(found: dict[str, Any]) -> None:
    assert found["no room"] == "Ray has no room for a worker of one processor and 4 accelerators"


def test_an_answer_that_is_too_long_does_not_come(found: dict[str, Any]) -> None:
    assert found["too long"] == 0
