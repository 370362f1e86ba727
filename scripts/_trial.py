"""A mutant's trial: its tests against a copy of the code that has the bug in it, in a process of its own.

The checkout is never touched. The processes are forked from one that has loaded what the package depends on and nothing
of the package itself, so that a trial takes little more time than its tests.
"""

import gc
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn

from scripts._common import ROOT
from scripts._mutant import Mutant

Outcome = Literal["killed", "SURVIVED", "hung", "broken", "passed"]

DEPENDENCIES = (
    *("dp_accounting.pld.privacy_loss_distribution", "dp_accounting.rdp", "scipy.optimize", "scipy.stats"),
    *("numba", "pydantic", "safetensors.numpy", "sklearn.linear_model", "torch", "typer"),
    *("anyio", "hypothesis.extra.numpy", "pytest", "pytest_cov", "pytest_timeout", "xdist"),
)

_OPTIONS = (
    *("-x", "-q", "-m", "slow or not slow", "-p", "no:cacheprovider"),
    *("-o", "timeout=0"),  # a test that takes too long has noticed nothing
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # for plugins that are loaded already, which saves a second
)
_LEFT_OUT = (".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "_build", "dist", "out")
_PAUSE_S = 0.05
_COMPILED = ("*.nbi", "*.nbc")  # loops that numba compiled may hold what another file said before


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a trial ended: `by` is the test that failed first, `output` what pytest said.

    "broken" is a mutant whose code cannot even be imported, or whose tests cannot be found: that proves nothing.
    """

    outcome: Outcome
    by: str = ""
    seconds: float = 0.0
    output: str = ""


@contextmanager
def copied(root: Path = ROOT) -> Iterator[Path]:
    """A copy of the tree in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="incrowd-mutants-") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        yield copy


def load_dependencies() -> None:
    """Load what takes long and is not ours."""
    for name in DEPENDENCIES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # pytest collects garbage: what never is any need not be looked at, nor copied for that


def control(tree: Path, tests: Sequence[str], *, limit_s: float) -> Verdict:
    """Whether the tests pass without any mutant. What Python compiles on the way stays in the tree, for the trials."""
    process = _start(tree, tests)
    while (found := process.verdict(limit_s)) is None:
        time.sleep(_PAUSE_S)
    return replace(found, outcome="passed") if found.outcome == "SURVIVED" else found


def trials(tree: Path, mutants: Sequence[Mutant], *, jobs: int, limit_s: float) -> Iterator[tuple[Mutant, Verdict]]:
    """The verdict on each mutant, as soon as it is known; so many trials at a time."""
    waiting, running = list(reversed(mutants)), list[tuple[Mutant, Path, _Process]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                copy = _mutated(tree, mutant := waiting.pop())
                running.append((mutant, copy, _start(copy, mutant.tests)))
            for trial in list(running):
                mutant, copy, process = trial
                if (found := process.verdict(limit_s)) is not None:
                    running.remove(trial)
                    shutil.rmtree(copy.parent)
                    yield mutant, _as_declared(mutant, found)
            time.sleep(_PAUSE_S)
    finally:
        for _, _, process in running:
            process.end()


def _as_declared(mutant: Mutant, found: Verdict) -> Verdict:
    if found.outcome == "hung" and mutant.hangs:
        return replace(found, outcome="killed", by="the time limit")
    return found


def _mutated(tree: Path, mutant: Mutant) -> Path:
    text = mutant.applied(tree)
    copy = Path(tempfile.mkdtemp(dir=tree.parent)) / "tree"
    stale = _COMPILED if mutant.file.startswith("incrowd/learning") else ()
    shutil.copytree(tree, copy, ignore=shutil.ignore_patterns(*stale))
    path = copy / mutant.file
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()  # one of the same second and length would be taken for this text's
    return copy


@dataclass(frozen=True)
class _Process:
    """A process with tests in it, the leader of a group."""

    number: int
    report: Path
    begun: float

    def verdict(self, limit_s: float) -> Verdict | None:
        """How it ended, or None while it has not."""
        if os.waitpid(self.number, os.WNOHANG) != (0, 0):
            self.end()
            return self._verdict(None)
        if time.monotonic() - self.begun > limit_s:
            self.end()
            os.waitpid(self.number, 0)
            return self._verdict("hung")
        return None

    def end(self) -> None:
        """End it, and what its tests may have left running."""
        with suppress(ProcessLookupError):
            os.killpg(self.number, signal.SIGKILL)

    def _verdict(self, outcome: Outcome | None) -> Verdict:
        output = self.report.with_suffix(".log").read_text(encoding="utf-8", errors="replace")
        status, by = json.loads(self.report.read_text()) if self.report.is_file() else (None, "")
        outcomes: dict[int | None, Outcome] = {0: "SURVIVED", 1: "killed"}
        return Verdict(
            outcome=outcome or outcomes.get(status, "broken"),
            by=by,
            seconds=time.monotonic() - self.begun,
            output=output,
        )


def _start(tree: Path, tests: Sequence[str]) -> _Process:
    report = tree.parent / "report.json"
    report.unlink(missing_ok=True)
    report.with_suffix(".log").touch()
    begun = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    number = os.fork()
    if number == 0:
        _test(tree, tests, report)
    with suppress(ProcessLookupError, PermissionError):
        os.setpgid(number, number)  # whoever comes first, parent or child
    return _Process(number, report, begun)


def _test(tree: Path, tests: Sequence[str], report: Path) -> NoReturn:
    """The forked process: never returns into its parent's code."""
    status = 3
    try:
        os.setpgid(0, 0)
        log = os.open(report.with_suffix(".log"), os.O_WRONLY | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        _move_into(tree)
        first = _FirstFailure()
        import pytest

        options = ["--rootdir", str(tree), "-c", str(tree / "pyproject.toml")]
        status = int(pytest.main([*_OPTIONS, *options, *tests], plugins=[first]))
        sys.stdout.flush()
        part = report.with_suffix(".part")
        part.write_text(json.dumps([status, first.test]))
        part.replace(report)
    finally:
        os._exit(status)


def _move_into(tree: Path) -> None:
    """From here on all that is ours is imported from the tree, in this process and in those that it starts."""
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    sys.dont_write_bytecode = False  # what is compiled for the control serves all trials
    sys.path[:] = [str(tree), *(place for place in sys.path if place and Path(place).resolve() != ROOT)]
    ours = {path.stem for path in tree.iterdir()}
    for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
        del sys.modules[name]


class _FirstFailure:
    """The first test that failed."""

    def __init__(self) -> None:
        self.test = ""

    def pytest_runtest_logreport(self, report: object) -> None:
        if getattr(report, "failed", False) and not self.test:
            self.test = str(getattr(report, "nodeid", ""))
