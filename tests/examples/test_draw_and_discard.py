"""The example runs; killed at any moment and started again, it loses nothing but what was not paid for."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from incrowd import Server
from tests.drawdiscard.mail import charges

EXAMPLE = Path(__file__).parents[2] / "examples/draw_and_discard.py"
PHONES = 16


def start(out: Path) -> "subprocess.Popen[str]":
    words = [sys.executable, str(EXAMPLE), str(out), str(PHONES)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def paid(out: Path) -> int:
    return sum(charges(path) for path in out.glob("*.ledger") if path.stat().st_size)


def test_the_front_door_is_ten_lines() -> None:
    text = EXAMPLE.read_text()
    body = text[text.index("def learn(") : text.index("def fill(")]
    lines = [line for line in body.splitlines()[2:] if line.strip()]
    assert len(lines) <= 10, lines


@pytest.mark.timeout(300)
@pytest.mark.parametrize("killed_after", [2, 10])
def test_it_is_killed_and_goes_on(tmp_path: Path, killed_after: int) -> None:
    """It works on several phones at a time, so that many answers at most were paid for and not yet kept."""
    first = start(tmp_path)
    while len(list(tmp_path.glob("*.witness"))) < killed_after and first.poll() is None:
        time.sleep(0.001)
    first.kill()
    assert first.wait() in (-signal.SIGKILL, 0)
    first.communicate()
    before = paid(tmp_path)
    second = start(tmp_path)
    said, _ = second.communicate()
    assert second.returncode == 0, said
    assert "friend     20 words: opened" in said
    assert paid(tmp_path) == PHONES, "each has paid once"
    with Server.open(tmp_path / "server") as server:
        lost = PHONES - server.accepted
    at_a_time = 4
    assert lost <= at_a_time + 4, f"{before} had paid when it was killed; 4 may have been turned away"
    assert not list(tmp_path.glob("*.outbox"))
