import json
import sys
import warnings

import pytest

from contest import records, works
from incrowd.cli import main
from incrowd.errors import IncrowdError
from tests.benchmarks.small import PERCEPTRON


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["incrowd", "bench", *words])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


@pytest.fixture
def small_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(works.WORKS, "small", PERCEPTRON)


@pytest.mark.slow
@pytest.mark.usefixtures("small_work")
def test_json_is_one_object_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--work", "small", "--batch", "10", "--against", "lean", "--quick", "--json") == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert {"results", "ratios", "machine", "skipped"} <= set(found)
    assert "small b10 vs lean" in found["ratios"]
    assert printed.err.startswith("small b10: incrowd, lean")


@pytest.mark.slow
def test_what_was_measured_is_printed_though_what_follows_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_contest: object, _say: object) -> None:
        raise IncrowdError("opacus does other work")

    monkeypatch.setitem(works.WORKS, "small", PERCEPTRON)
    monkeypatch.setattr(records.RecordContest, "run", fail)
    words = ["--work", "small,records", "--against", "lean", "--batch", "10", "--quick"]
    assert run(monkeypatch, *words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert "small b10 vs lean" in found["ratios"]
    assert found["skipped"]["records"] == "opacus does other work"
    assert run(monkeypatch, "--work", "records", "--json") == 1
