"""Real processes at their worst: killed at random, a liar among them; ledgers and model stay what they should be."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from incrowd.federation import Federation
from incrowd.parties.guard import given
from incrowd.parties.keys import new_invitation
from incrowd.privacy.ledger.ledger import verify
from incrowd.runs.folder import DATABASE, payer_in
from tests.flower import bad_party
from tests.flower.deployment import ROOT, free_port, wait_for
from tests.parties.members import Hospitals, MemberLine, settings_text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS = 22
HONEST = ("amber", "birch")
KILLED = ("serve", "superlink", "amber", "serve", "superlink", "cedar")


class Storm:
    """A server and three parties as processes, which may be killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hospitals = Hospitals(folder)
        self.port = free_port()
        invitation = new_invitation(folder / "server", f"127.0.0.1:{self.port}").to_text()
        for name in self.hospitals.names:
            (folder / name / "invitation.json").write_text(invitation)
        (folder / "there.toml").write_text(settings_text(here=False, rounds=ROUNDS))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, what: str) -> None:
        keys, port = str(self.folder / "server"), str(self.port)
        out, config = str(self.folder / "out"), str(self.folder / "there.toml")
        serving = ["flower", "serve", config, "--keys", keys, "--port", port]
        words = {
            "serve": ["-m", "incrowd", *serving, "--out", out, "--timeout", "20"],
            "cedar": [bad_party.__file__, str(self.folder / "cedar")],
        }
        with (self.folder / f"{what}.log").open("ab") as log:
            self.processes[what] = subprocess.Popen(
                [sys.executable, *words.get(what, ["-m", "incrowd", "flower", "join", str(self.folder / what)])],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
            )

    def kill(self, what: str) -> None:
        """SIGKILL, and another life if it is not one that is watched."""
        if what == "superlink":
            wait_for(lambda: bool(children(self.processes["serve"].pid, b"incrowd.flower.superlink")), 60)
            for process in children(self.processes["serve"].pid, b"incrowd.flower.superlink"):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            return
        self.processes[what].kill()
        self.processes[what].wait()
        self.start(what)

    def rounds(self) -> int:
        """How many are done."""
        place = self.folder / "out" / DATABASE
        if not place.exists():
            return 0
        with closing(sqlite3.connect(f"file:{place}?mode=ro", uri=True)) as database, suppress(sqlite3.Error):
            return int(database.execute("SELECT count(*) FROM rounds").fetchone()[0])
        return 0

    def reach(self, rounds: int) -> None:
        """Wait until so many are done."""
        serving = self.processes["serve"]
        wait_for(lambda: self.rounds() >= rounds or serving.poll() is not None, 240)
        assert serving.poll() is None, (self.folder / "serve.log").read_text()[-2000:]

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()


def children(parent: int, module: bytes) -> list[int]:
    """The processes that one has started, of a module."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0")
            if str(parent).encode() in words and module in words:
                found.append(int(place.name))
    return found


@pytest.fixture
def storm(tmp_path: Path) -> Iterator[Storm]:
    made = Storm(tmp_path)
    yield made
    made.end()


def test_ledgers_and_model_are_exact_whoever_is_killed_and_whoever_lies(storm: Storm) -> None:
    for what in ("serve", *storm.hospitals.names):
        storm.start(what)
    order = np.random.default_rng(7).permutation(KILLED)
    for number, what in enumerate(order):
        storm.reach(1 + number * (ROUNDS - 4) // len(KILLED))
        storm.kill(what)
    end = time.monotonic() + 300
    while storm.processes["serve"].poll() is None and time.monotonic() < end:
        time.sleep(0.2)
    assert storm.processes["serve"].returncode == 0, (storm.folder / "serve.log").read_text()[-2000:]
    storm.end()
    for name in HONEST:
        assert [row["round"] for row in given(storm.folder / name)["events"]] == list(range(ROUNDS)), name
    payer = payer_in(storm.folder / "out")
    assert verify(Path(payer["path"]))["intact"]
    released = load_file(storm.folder / "out" / "model.safetensors")
    assert all(np.isfinite(array).all() for array in released.values())
    assert {n: a.tolist() for n, a in released.items()} == quiet(storm.folder / "quiet")


def quiet(folder: Path) -> dict[str, list[float]]:
    """The model of the same run without a storm, in which the liar is not there."""
    folder.mkdir()
    hospitals = Hospitals(folder)
    calm = settings_text(here=False, rounds=ROUNDS).replace('"hearts"', '"calm"')  # the ledger of hearts is spent
    (folder / "there.toml").write_text(calm)
    line = MemberLine(hospitals, gone={"cedar"})
    run = Federation.from_settings(folder / "there.toml").run_in(folder / "out")
    hospitals.server(least=2, say=lambda _: None).train_over(line, run)
    line.close()
    return {name: array.tolist() for name, array in load_file(folder / "out" / "model.safetensors").items()}
