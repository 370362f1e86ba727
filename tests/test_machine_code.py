import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import incrowd
from incrowd import _machine_code
from incrowd._machine_code import LoopsOrPlain
from incrowd.privacy.mechanism import grid, proposal_loops

NAME = proposal_loops.__name__


def test_loops_are_loaded_when_that_has_become_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_machine_code, "WORTH", 100)
    loops = LoopsOrPlain(NAME, plain=grid)
    assert loops.best(60) is grid
    assert loops.best(39) is grid
    assert loops.best(1) is proposal_loops
    assert loops.best(1) is proposal_loops


def test_without_numba_plain_code_has_all_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_machine_code, "WORTH", 100)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)
    loops = LoopsOrPlain(NAME, plain=grid)
    assert [loops.best(60) is grid for _ in range(4)] == [True] * 4


DRAWN = """
import resource, sys
import numpy as np
from incrowd import _machine_code
_machine_code.WORTH = 2**11
from incrowd._random import SystemRandomness
from incrowd.privacy.mechanism.grid import sample_noise
if sys.argv[1] == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
stream = SystemRandomness().stream("noise")
drawn = np.concatenate([sample_noise(scale=2.0**40, size=2**11, stream=stream) for _ in range(3)])
print(len(np.unique(drawn)), "incrowd.privacy.mechanism.proposal_loops" in sys.modules)
"""


def drawn(folder: Path, now: str) -> str:
    """What a process that keeps its machine code in the folder says of the noise that it drew."""
    told = subprocess.run(
        [sys.executable, "-c", DRAWN, now],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout or told.stderr


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the machine code of a process that drew noise."""
    folder = tmp_path_factory.mktemp("machine-code")
    assert drawn(folder, "as it was") == "6144 True\n"
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("disk", ["as it was", "cut", "emptied", "strange"])
def test_noise_is_drawn_whatever_became_of_the_machine_code_on_disk(written: Path, tmp_path: Path, disk: str) -> None:
    """By then it is paid for; a run that ended there would pay again, and end there again."""
    folder = shutil.copytree(written, tmp_path / "copy")
    kept = [file for file in folder.rglob("*") if file.is_file()]
    assert len(kept) > 1, "the control: there is machine code on disk"
    for file in kept:
        content = file.read_bytes()
        changed = {"cut": content[:40], "emptied": b"", "strange": b"\x80\x04" + 200 * b"x"}
        file.write_bytes(changed.get(disk, content))
    assert drawn(folder, disk) == "6144 True\n"


@pytest.mark.slow
def test_noise_is_drawn_where_no_machine_code_can_be_kept(tmp_path: Path) -> None:
    assert drawn(tmp_path, "full") == "6144 True\n"


HIDDEN = "import sys; sys.modules['fcntl'] = None; "
SAID = "files cannot be locked here (no fcntl): use Linux, macOS, or on Windows its subsystem for Linux (WSL)"


def test_where_files_cannot_be_locked_every_public_name_is_refused_with_the_remedy() -> None:
    """The command line, too: tests/test_cli_system.py."""
    for asks in ("import incrowd; incrowd.Budget", "from incrowd import Federation"):
        done = subprocess.run([sys.executable, "-c", HIDDEN + asks], capture_output=True, text=True, check=False)
        last = done.stderr.strip().splitlines()[-1]
        assert last == f"incrowd.errors.ConfigError: platform = {sys.platform!r}: {SAID}"


@pytest.mark.usefixtures("one_thread")
def test_without_a_safe_fork_a_federation_trains_in_one_process_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = ["data.clients=12", "privacy.rounds=2", "run.randomness=seeded", "run.seed=3"]

    def weights(name: str, threads: int) -> bytes:
        federation = incrowd.Federation.from_settings(overrides=[*quick, f"run.threads={threads}"])
        federation.train(tmp_path / name, progress=False)
        return (tmp_path / name / "model.safetensors").read_bytes()

    alone = weights("alone", 1)
    for module in ("incrowd.learning.engine", "incrowd.learning.workers"):
        monkeypatch.setattr(f"{module}.CAN_FORK", False)
    monkeypatch.setattr("multiprocessing.context.ForkProcess._Popen", None)  # whoever forks fails
    assert weights("mac", 2) == alone
