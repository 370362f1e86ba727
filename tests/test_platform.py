import subprocess
import sys
from pathlib import Path

import pytest

import incrowd

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
