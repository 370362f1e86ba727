import json
from pathlib import Path

import pytest

from harness.pictures import axes, dress, files
from harness.results import Finding, show
from harness.seeds import repeated


def test_a_measurement_is_repeated_for_each_seed_and_progress_is_told() -> None:
    said: list[str] = []
    found = repeated(lambda seed: 10 * seed, seeds=3, told="got {}".format, say=said.append)
    assert (found.runs, found.first) == ([0, 10, 20], 0)
    assert [line.rpartition(" after ")[0] for line in said] == [
        "  seed 0: got 0",
        "  seed 1: got 10",
        "  seed 2: got 20",
    ]
    assert found.seconds >= 0
    assert repeated(str, seeds=[7, 5]).runs == ["7", "5"]


def test_results_are_one_json_object_or_parts_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding(statement="it is so", measured="it is not", agrees=False).to_json()
    found = {"rows": [{"rate": 2}], "findings": [finding], "files": ["a.png"]}
    show(found, "words", {"a_fact": 1}, [{"rate": 2}], as_json=True)
    assert json.loads(capsys.readouterr().out) == found
    show(found, "words", {"a_fact": 1}, [{"rate": 2}], as_json=False)
    words, fact, *_, last_but_one, last = capsys.readouterr().out.splitlines()
    assert (words, fact) == ("words", "a fact       1")
    assert (last_but_one, last) == ("DIFFERS  it is so: it is not", "drawn: a.png")


@pytest.mark.slow
def test_a_picture_is_in_all_its_files(tmp_path: Path) -> None:
    paths = files(tmp_path / "new", "curve")
    with axes(*paths, columns=2) as (left, right):
        left.plot([1, 2], label="rising")
        dress(left, "rounds", "accuracy")
        dress(right, title="empty")
        assert left.get_legend() is not None
        assert right.get_legend() is None
    assert [path.name for path in paths] == ["curve.png", "curve.svg"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert "SIMULATION: seeded noise" in paths[1].read_text()
