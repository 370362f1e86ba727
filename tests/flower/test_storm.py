"""Real processes at their worst: killed at random, a liar among them; ledgers and model stay what they should be."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from incrowd.errors import DataError
from incrowd.federation import Federation
from incrowd.parties.frames import opened
from incrowd.parties.guard import given
from incrowd.parties.keys import new_invitation, read_roster
from incrowd.privacy.ledger.ledger import verify
from incrowd.runs.folder import DATABASE, database_in, payer_in
from tests import nginx
from tests.flower import bad_party, recorded
from tests.flower.deployment import ROOT, free_port, hand_out, wait_for
from tests.flower.recorded import REPLIES, replies_in
from tests.nginx import Nginx
from tests.parties.members import NAMES, Hospitals, MemberLine, settings_text
from tests.parties.test_masked import in_earnest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROUNDS = 30
HONEST = ("amber", "birch")
KILLED = ("serve", "superlink", "nginx", "amber", "birch", "the liar") * 2
FIVE = ("amber", "birch", "cedar", "dune", "elm")


class Storm:
    """A server and its parties as processes, which may be killed; where `proxied`, nginx is between them."""

    def __init__(self, folder: Path, names: tuple[str, ...] = NAMES, *, proxied: bool = False) -> None:
        self.folder = folder
        self.hospitals = Hospitals(folder, names)
        self.port = free_port()
        self.public, self.nginx = free_port() if proxied else self.port, None
        address = f"127.0.0.1:{self.public}"
        if proxied:
            proxy = Path(tempfile.mkdtemp(prefix="storm-"))  # a socket's path is to be short
            hand_out(folder, proxy, folder / "server", listen=address, port=self.port)
            self.nginx = Nginx(proxy)
        invitation = new_invitation(folder / "server", address).to_text()
        for name in self.hospitals.names:
            (folder / name / "invitation.json").write_text(invitation)
        (folder / "there.toml").write_text(settings_text(here=False, rounds=ROUNDS))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        if self.nginx is not None:
            self.nginx.start(self.public)

    def start(self, what: str) -> None:
        keys, port = str(self.folder / "server"), str(self.port)
        out, config = str(self.folder / "out"), str(self.folder / "there.toml")
        serving = ["flower", "serve", config, "--keys", keys, "--port", port]
        words = {
            "serve": [recorded.__file__, *serving, "--out", out, "--timeout", "60"],
            "the liar": [bad_party.__file__, str(self.folder / "cedar")],
        }
        with (self.folder / f"{what}.log").open("ab") as log:
            self.processes[what] = subprocess.Popen(
                [sys.executable, *words.get(what, ["-m", "incrowd", "flower", "join", str(self.folder / what)])],
                env={**os.environ, "PYTHONPATH": str(ROOT), REPLIES: str(self.folder / "replies")},
                stdout=log,
                stderr=log,
            )

    def kill(self, what: str) -> None:
        """SIGKILL, and another life if it is not one that is watched."""
        if what == "nginx" and self.nginx is not None:
            self.nginx.crash(self.public)
            return
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

    def finish(self) -> None:
        """Wait for the end of the run, which is a good one, and end all processes."""
        end = time.monotonic() + 300
        while self.processes["serve"].poll() is None and time.monotonic() < end:
            time.sleep(0.2)
        assert self.processes["serve"].returncode == 0, (self.folder / "serve.log").read_text()[-2000:]
        self.end()

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
        if self.nginx is not None:
            self.nginx.stop()
            shutil.rmtree(self.nginx.folder)
            self.nginx = None


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
    made = Storm(tmp_path, proxied=True)
    yield made
    made.end()


@nginx.missing
def test_ledgers_and_model_are_exact_whoever_is_killed_and_whoever_lies(storm: Storm) -> None:
    """Thirty rounds through nginx, twelve kills, and a party that lies in each round."""
    for what in ("serve", *HONEST, "the liar"):
        storm.start(what)
    order = np.random.default_rng(7).permutation(KILLED)
    for number, what in enumerate(order):
        storm.reach(1 + number * (ROUNDS - 4) // len(KILLED))
        storm.kill(what)
    storm.finish()
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


@nginx.missing
def test_masked_rounds_are_paid_once_or_lost_whoever_is_killed(tmp_path: Path) -> None:
    """Thirty rounds of five hospitals that trust no server, through nginx, with eight kills."""
    storm = Storm(tmp_path, FIVE, proxied=True)
    try:
        in_earnest(storm.hospitals, rounds=30, colluders=2)
        for what in ("serve", *FIVE):
            storm.start(what)
        killed = np.random.default_rng(3).permutation(["serve", "superlink", *FIVE, "birch"])
        for number, what in enumerate(killed):
            storm.reach(1 + number * 3)
            storm.kill(str(what))
        storm.finish()
        with database_in(tmp_path / "out") as database:
            lost = [record.round for record in database.rounds() if record.lost]
        released = set(range(30)) - set(lost)
        charged = {name: [row["round"] for row in given(tmp_path / name)["events"]] for name in FIVE}
        for name, rounds in charged.items():
            assert len(set(rounds)) == len(rounds), name  # no round is paid twice, so no noise is drawn twice
            assert rounds == sorted(rounds)
        parties = [sum(number in rounds for rounds in charged.values()) for number in released]
        assert min(parties) > 2, "a sum of colluders"
        assert len(lost) <= 8
        assert verify(Path(payer_in(tmp_path / "out")["path"]))["intact"]
        check_masks(tmp_path)
    finally:
        storm.end()


def check_masks(folder: Path) -> None:
    """In all that reached the server, an answer that came twice is the same, and no two others have a mask in common:
    they differ by more than noise.
    """
    sent: dict[str, dict[tuple[int, str], bytes]] = {}
    size = sum(array.size for array in load_file(folder / "out" / "model.safetensors").values())
    for reply in replies_in(folder / "replies"):
        for card in read_roster(folder / "enrolled").cards:
            with suppress(DataError):
                _, place, head, body = opened(reply, ("masked",), key=card.public, most=4 * size)
                assert sent.setdefault(card.name, {}).setdefault((place.round, head["list"]), bytes(body)) == body
    assert sum(len(answers) for answers in sent.values()) > 5 * 20
    for name, answers in sent.items():
        words = np.array([np.frombuffer(body, np.uint16) for body in answers.values()]).astype(np.int64)
        assert words.shape == (len(answers), size), name
        for later in range(1, len(words)):
            apart = np.abs(words[later] - words[:later])
            near = (np.minimum(apart, 2**16 - apart) < 200).mean(axis=1)
            assert near.max() < 0.5, name
