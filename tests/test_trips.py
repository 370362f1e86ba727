"""The files that a reader of one round, or of one setting, opens: the bounds may only fall."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from torch import nn

import incrowd
from incrowd.algorithms.silos import Silo
from incrowd.parties.participant import Participant
from incrowd.runs.round_loop import Session
from incrowd.runs.run import Run
from tests.parties.members import Hospitals, MemberLine
from tests.parties.test_masked import in_earnest, served
from tests.runs.small import load

PACKAGE = str(Path(incrowd.__file__).parent)
ROUND, ANSWER, PARTY, SETTING = 32, 30, 23, 60


class StopsAtOnce:
    """A tracker that ends a run before its first round."""

    def start(self, settings: object, past: object) -> None:
        raise KeyboardInterrupt

    def round(self, record: object) -> None: ...

    def end(self, summary: object) -> None: ...


def passed(function: Callable[..., Any], seen: set[str]) -> Callable[..., Any]:
    """The function, which notes the package's files that its latest call passed."""

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>" and frame.f_code.co_filename.startswith(PACKAGE):
            seen.add(frame.f_code.co_filename)

    def traced(*given: Any, **named: Any) -> Any:
        seen.clear()
        before = sys.getprofile()
        sys.setprofile(profile)
        try:
            return function(*given, **named)
        finally:
            sys.setprofile(before)

    return traced


def files_of(owner: type, name: str, run: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    seen: set[str] = set()
    monkeypatch.setattr(owner, name, passed(getattr(owner, name), seen))
    run()
    return {str(Path(path).relative_to(PACKAGE)) for path in seen}


def test_a_round_of_the_demonstration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(None, overrides=["privacy.rounds=3", "run.threads=1"])
    run = Run.create(config, tmp_path / "run")
    files = files_of(Session, "step", run.train, monkeypatch)
    assert {"algorithms/fedavg.py", "algorithms/clients.py", "privacy/release.py", "privacy/ledger/ledger.py"} <= files
    assert len(files) <= ROUND, sorted(files)


def test_an_answer_of_a_silo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    labels = (rows[:, 0] > 0).astype(np.int64)
    parts = {"north": (rows[:100], labels[:100]), "south": (rows[100:], labels[100:])}
    federation = incrowd.Federation(
        nn.Linear(3, 2),
        incrowd.Clients.from_partitions(parts, classes=2, public=True),
        local=incrowd.Local(learning_rate=0.5),
        privacy=incrowd.Private(unit="record", epsilon=8.0, delta=1e-5, rounds=3),
    )
    files = files_of(Silo, "answer", lambda: federation.train(tmp_path / "run", progress=False), monkeypatch)
    assert {"algorithms/silos.py", "privacy/paid.py", "privacy/ledger/ledger.py"} <= files
    assert len(files) <= ANSWER, sorted(files)


@pytest.mark.filterwarnings("ignore::incrowd.privacy.plan.plan.PrivacyWarning")
def test_an_answer_of_a_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The masked part of a hospital: its question, and then its list."""
    hospitals = Hospitals(tmp_path)
    in_earnest(hospitals)
    line = MemberLine(hospitals)
    files = files_of(Participant, "answer", lambda: served(hospitals, line), monkeypatch)
    line.close()
    assert {"parties/participant.py", "parties/secure_sum.py", "privacy/paid.py"} <= files
    assert len(files) <= PARTY, sorted(files)


def test_a_setting_on_its_way_to_the_engine(tmp_path: Path) -> None:
    """From the file of settings to the moment before the first round."""

    def begun(folder: Path) -> None:
        run = Run.create(load(None, overrides=["privacy.rounds=3", "run.threads=1"]), folder)
        with pytest.raises(KeyboardInterrupt):
            run.train([StopsAtOnce()])

    begun(tmp_path / "first")  # files that are read once in a process are read now
    seen: set[str] = set()
    passed(begun, seen)(tmp_path / "run")
    files = {str(Path(path).relative_to(PACKAGE)) for path in seen}
    assert {"settings.py", "runs/config.py", "runs/build.py", "learning/engine.py"} <= files
    assert len(files) <= SETTING, sorted(files)
