import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

from incrowd.flower.child import Child
from tests.flower.deployment import ROOT, wait_for

SLEEPS = "tests.flower.sleeps"


def runs(process_id: int) -> bool:
    """Whether a process is there, and is no corpse."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def child(folder: Path, *arguments: str) -> Child:
    return Child(SLEEPS, arguments, folder / "log", {"PYTHONPATH": str(ROOT)})


def test_its_files_are_for_this_user_alone(tmp_path: Path) -> None:
    made = child(tmp_path, str(tmp_path / "grandchild"))
    wait_for((tmp_path / "grandchild").exists)
    made.stop()
    for name in ("log", "grandchild"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from incrowd.flower.child import Child;"
        f"made = Child({SLEEPS!r}, [sys.argv[1]], Path(sys.argv[2]), {{}});"
        "Path(sys.argv[3]).write_text(str(made.process_id)); time.sleep(60)"
    )
    names = [str(tmp_path / name) for name in ("grandchild", "log", "child")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", code, *names], env=environment)
    wait_for(lambda: (tmp_path / "grandchild").exists() and bool((tmp_path / "child").read_text()))
    found = int((tmp_path / "child").read_text())
    assert runs(found)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not runs(found), 10)
