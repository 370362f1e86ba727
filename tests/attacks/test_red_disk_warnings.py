"""A private selection whose attempts diverge: each warns, and the lines on standard error could be counted."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from incrowd.privacy.account.selection import Repetitions
from incrowd.runs.run import Run
from incrowd.runs.sweep import Sweep
from tests.attacks.shop import search

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def lines(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What a selection of so many attempts, each of which warns, puts on standard error."""
    train = Run.train

    def warns(run: Run, *words: object) -> object:
        warnings.warn("overflow encountered in cast", RuntimeWarning, stacklevel=2)
        return train(run, *words)  # type: ignore[arg-type]  # whatever the caller gave

    def found(attempts: int) -> str:
        monkeypatch.setenv("INCROWD_STATE", str(tmp_path / f"state-{attempts}"))
        monkeypatch.setattr(Repetitions, "sample", lambda *_: attempts)
        monkeypatch.setattr(Run, "train", warns)
        wanted = search(shop, select="private", repetitions=Repetitions(mean=3.0, shape=1.0))
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *_, **__: os.write(2, f"warning: {message}\n".encode())  # type: ignore[assignment]  # a line, as the command line has it
            Sweep(search=wanted, out=tmp_path / f"search-{attempts}").run()
        return "".join(line for line in capfd.readouterr().err.splitlines(keepends=True) if "overflow" in line)

    return found


@pytest.mark.slow
def test_how_often_attempts_warn_does_not_tell_how_many_there_were(lines: Callable[..., str]) -> None:
    assert lines(1) == lines(3)


@pytest.mark.slow
def test_control_attempts_that_may_warn_can_be_counted(
    lines: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sweep, "_train", lambda self, task: self._open[task.number].train())
    assert [lines(count).count("overflow") for count in (1, 3)] == [1, 3]
