"""Flower really runs: Ray starts, trains and is gone again."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from contest import flower
from contest.flower import FlowerProcess
from contest.lean import Lean
from tests.benchmarks import small

LOOPBACK = ("127.0.0.1:", "[::1]:", "[::ffff:127.0.0.1]:")

pytest.importorskip("flwr", reason="Flower is an extra")


def of_ray() -> set[int]:
    """Ray's processes below this one."""
    command = ["ps", "-eo", "pid=,ppid=,args="]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    words = {int(pid): (int(parent), args) for pid, parent, args in (line.split(maxsplit=2) for line in lines)}
    found = {os.getpid()}
    while more := {pid for pid, (parent, _) in words.items() if parent in found} - found:
        found |= more
    return {pid for pid in found if "ray" in words[pid][1] and pid != os.getpid()}


def listening(processes: set[int]) -> set[str]:
    """The addresses at which these processes can be reached."""
    lines = subprocess.run(["ss", "-tlnpH"], capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[3] for line in lines if any(f"pid={pid}," in line for pid in processes)}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux shows them")
def test_flower_does_the_same_work_and_leaves_nothing_behind() -> None:
    tasks = small.task(), small.task(small.CNN), small.task(small.GRU)
    with FlowerProcess() as process:
        for task in tasks:  # of two sizes of cohort, and one with a frozen part
            competitor = process.competitor(task)
            expected = Lean(task).update()
            assert np.linalg.norm(competitor.update() - expected) < 1e-5 * np.linalg.norm(expected)
            assert competitor.round(1) > 0
        running = of_ray()
        assert len(running) > 2
        assert {address for address in listening(running) if not address.startswith(LOOPBACK)} == set()
    deadline = time.monotonic() + 60  # Ray's agents notice within seconds that they are alone
    while any(Path(f"/proc/{pid}").exists() for pid in running) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [pid for pid in running if Path(f"/proc/{pid}").exists()]
    assert not of_ray()


def test_nothing_is_reported_to_anyone() -> None:
    assert flower.SILENCE["FLWR_TELEMETRY_ENABLED"] == "0"
    assert flower.SILENCE["RAY_USAGE_STATS_ENABLED"] == "0"
