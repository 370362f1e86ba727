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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--work", "mlp,simulation"], "work = 'simulation': measure it on its own"),
        (["--work", "records,simulation"], "work = 'simulation': measure it on its own"),
        (["--work", "mlp,records", "--against", "lean,nobody"], "against = 'nobody': give one or several of lean, pfl"),
        (["--work", "records", "--memory"], "work = 'records': measure it on its own"),
        (["--work", "records", "--against", "lean"], "against = 'lean': at records, give opacus"),
        (["--work", "records", "--batch", "0"], "batch_size = 0"),
        (["--work", "records", "--batch", ","], "batch = "),
        (["--work", "mlp,service", "--device", "cpu:1"], "device = 'cpu:1': leave it out: service has its own"),
        (["--work", "mpl"], "work = 'mpl': give one or several of linear, mlp, mlp600, cnn"),
        (["--work", "mpl"], "lora, records, simulation, service"),
        (["--work", ","], "work = "),
        (["--against", "lean,nobody"], "against = 'nobody'"),
        (["--against", "opacus"], "against = 'opacus': it trains on records: give --work records"),
        (["--batch", "0"], "batch_size = 0"),
        (["--batch", "ten"], "batch = 'ten'"),
        (["--device", "abacus"], "device = 'abacus': give one that torch finds here"),
        (["--work", "records", "--device", "abacus"], "device = 'abacus': give one that torch finds here"),
        (["--work", "simulation", "--device", "cpu:1"], "device = 'cpu:1': leave it out: simulation has its own"),
        (["--work", "simulation", "--clients", "3"], "clients = 3: leave it out: simulation has its own"),
        (["--work", "service", "--examples", "3"], "examples = 3: leave it out: service has its own"),
        (["--work", "simulation", "--batch", "10,100"], "batch = (10, 100): give one size: simulation has one"),
        (["--clients", "0"], "clients = 0"),
        (["--examples", "0"], "examples = 0"),
        (["--clients", "101"], "clients = 101: give at most 60,000 examples for all, which is 100"),
        (["--data", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_exits_with_2(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *words) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


def test_what_an_option_is_not_for_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    refused = ("--workers", "none")  # before anything is measured
    run(monkeypatch, "--work", "simulation", "--against", "lean", "--batch", "10,100", *refused)
    assert "simulation is measured as it is: --against makes no difference to it" in capsys.readouterr().err
    run(monkeypatch, "--work", "mlp,service", "--against", "lean", *refused)
    assert "makes no difference" not in capsys.readouterr().err


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
@pytest.mark.usefixtures("small_work")
def test_the_table_is_for_people(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--work", "small", "--batch", "10", "--against", "lean", "--quick") == 0
    assert "| small | 10 | lean | 1 |" in capsys.readouterr().out


@pytest.mark.slow
def test_works_and_records_are_measured_after_each_other_each_against_its_own_peers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(records, "MODELS", ("small",))
    monkeypatch.setitem(works.WORKS, "small", PERCEPTRON)
    words = ["--work", "small,records", "--against", "lean,opacus", "--batch", "10", "--quick"]
    assert run(monkeypatch, *words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {"small b10 vs lean", "records small b10 vs opacus-ghost"} <= set(found["ratios"])
    assert {one["work"] for one in found["results"]} == {"small", "records small"}
    assert not any("pfl" in name for name in found["ratios"])
    assert run(monkeypatch, *words) == 0
    assert capsys.readouterr().out.count("were compared with ours first") == 2


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


@pytest.mark.slow
def test_records_have_a_table_of_their_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(records, "MODELS", ("small",))
    monkeypatch.setitem(works.WORKS, "small", PERCEPTRON)
    assert run(monkeypatch, "--work", "records", "--batch", "10", "--quick", "--json") == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert "records small b10 vs opacus-ghost" in found["ratios"]
    assert printed.err.startswith("records small b10: incrowd, ")
