"""The command line, run in the process of the test as `python -m incrowd` runs it in one of its own."""

import json
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from incrowd.cli import main


class Finished(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str

    def object(self) -> dict[str, Any]:
        """With --json there is one JSON object on standard output, and nothing else."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


Command = Callable[..., Finished]


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *first: str) -> Command:
    """A function that runs ``incrowd`` with these words and more."""

    def run(*words: str) -> Finished:
        monkeypatch.setattr(sys, "argv", ["incrowd", *first, *words])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            with pytest.raises(SystemExit) as stopped:
                main()
        printed = capsys.readouterr()
        return Finished(int(stopped.value.code or 0), printed.out, printed.err)

    return run
