import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.cli.config_utils import load_and_validate
from typer.testing import CliRunner

from incrowd.cli import app
from incrowd.cli.parties import new_app
from incrowd.errors import ConfigError
from incrowd.flower import QUIET
from incrowd.flower.app import client_app
from incrowd.privacy.ledger.ledger import Ledger, verify
from tests.flower.deployment import free_port, wait_for
from tests.flower.stock import identify, record

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
ROUNDS = 2


def test_an_app_is_written_as_flower_has_them(tmp_path: Path) -> None:
    folder = tmp_path / 'a "heart" \\ Study'
    result = CliRunner().invoke(app, ["flower", "new", str(folder), "--json"])
    assert result.exit_code == 0
    files = [Path(file) for file in json.loads(result.stdout)["files"]]
    assert sorted(files) == sorted(folder.iterdir())
    config, warnings = load_and_validate(folder / "pyproject.toml")
    assert warnings == []
    assert config["project"]["name"] == "a-heart-study"
    told = config["tool"]["flwr"]["app"]["config"]
    assert (told["ledger"], told["model"]) == (str(folder / "ledger.sqlite"), str(folder / "model.npz"))


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    new_app(tmp_path / "heart")
    (tmp_path / "file").write_text("mine")
    for taken in ("heart", "file"):
        with pytest.raises(ConfigError, match="name a new folder"):
            new_app(tmp_path / taken)
    with pytest.raises(ConfigError, match="a name with letters"):
        new_app(tmp_path / "2026")
    (tmp_path / "empty").mkdir()
    assert len(new_app(tmp_path / "empty")) == 3


class Machine:
    """Flower's own programs on loopback, with a home of their own; all of them end with the test."""

    def __init__(self, folder: Path, trust: str = "insecure = true") -> None:
        self.folder, self.port = folder, free_port()
        self.home = folder / "home"
        self.home.mkdir()
        where = f'address = "127.0.0.1:{self.port}"\n{trust}\n'
        (self.home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n[superlink.here]\n{where}')
        self.environment = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(self.home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes.append(
                subprocess.Popen(
                    [str(BIN / words[0]), *words[1:]],
                    stdout=log,
                    stderr=log,
                    env=self.environment,
                    cwd=self.folder,
                    start_new_session=True,
                )
            )

    def flwr(self, *words: str) -> str:
        command = [str(BIN / "flwr"), *words]
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, check=False, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, app: Path, *more: str) -> str:
        """Run an app to its end; how it ended."""
        told = self.flwr("run", str(app), "here", "--format", "json", *more)
        number = json.loads(told[told.index("{") :])["run-id"]
        wait_for(lambda: self.status(number).startswith("finished"), 110)
        return self.status(number)

    def status(self, number: str) -> str:
        runs = json.loads(self.flwr("ls", "here", "--format", "json"))["runs"]
        return next(str(run["status"]) for run in runs if run["run-id"] == number)

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("*.log"))

    def end(self) -> None:
        for process in self.processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def machine(folder: Path, *words: str) -> Iterator[Machine]:
    made = Machine(folder)
    made.start("superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(made.port), *words)
    try:
        wait_for(lambda: answers(made.port), 60)
        yield made
    finally:
        made.end()


def answers(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def check_trained(folder: Path) -> None:
    """The plan's rounds are paid for, and the model is what came of them."""
    found = verify(folder / "ledger.sqlite")
    assert (found["intact"], found["events"]) == (True, ROUNDS)
    with Ledger.read(folder / "ledger.sqlite") as ledger:
        assert 0 < ledger.spent().epsilon <= ledger.budget.epsilon
        assert ledger.charges() == (ROUNDS, 0)
    with np.load(folder / "model.npz") as model:
        assert np.abs(model["weights"]).max() > 0
    assert "differentially private" in (folder / "model.txt").read_text()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_flwr_run_trains_a_written_app_on_stock_simulated_nodes_until_its_plan_is_over(tmp_path: Path) -> None:
    new_app(tmp_path / "heart")
    with machine(tmp_path, "--simulation") as flower:
        nodes = "num-supernodes=4 client-resources-num-cpus=1 init-args-num-cpus=1"
        status = flower.run(tmp_path / "heart", "--run-config", f"rounds={ROUNDS}", "--federation-config", nodes)
        assert status == "finished:completed", flower.logs()
        check_trained(tmp_path / "heart")
        assert (
            flower.run(tmp_path / "heart", "--run-config", f"rounds={ROUNDS}", "--federation-config", nodes)
            == "finished:failed"
        )
        check_trained(tmp_path / "heart")  # nothing more was asked or spent


def nowhere(**config: int) -> Context:
    return Context(run_id=1, node_id=1, node_config=dict(config), state=RecordDict(), run_config={})


def test_the_written_client_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    identify(monkeypatch)
    arrays = record(weights=np.zeros(3, np.float32), bias=np.zeros((), np.float32))
    asked = RecordDict({"arrays": arrays, "config": ConfigRecord({"epochs": 3, "learning-rate": 0.5})})
    answers = [
        client_app.app(Message(asked, 1, "train"), nowhere(**{"partition-id": number})).content.array_records["arrays"]
        for number in (0, 0, 1)
    ]
    first, again, other = (answer["weights"].numpy() for answer in answers)
    assert (first == again).all()
    assert (first != other).any()
    assert first.dtype == np.float32
    assert (first > 0).all()  # what is learnt is whether the sum is positive
