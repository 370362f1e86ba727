"""docs/deploy.md, step by step: a server and five hospitals, each in a directory and in processes of its own."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tests import nginx
from tests.flower.deployment import ROOT, free_port
from tests.nginx import Nginx

pytestmark = [nginx.missing, pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = ROOT / "docs" / "deploy.md"
HOSPITALS = ("amber", "birch", "cedar", "dogwood", "elm")
BLOCK = re.compile(r"```(sh|toml|python)\n# (.*?)\n(.*?)```", re.DOTALL)


@dataclass
class World:
    """Machines, as directories; what travels between them are files."""

    folder: Path
    proxy: Path
    port: int = field(default_factory=free_port)
    inside: int = field(default_factory=free_port)
    stay: list[subprocess.Popen[bytes]] = field(default_factory=list)
    hospitals: tuple[str, ...] = HOSPITALS
    there: dict[str, str] = field(default_factory=dict)
    """More words of the page, and what stands here instead."""

    def __post_init__(self) -> None:
        self.nginx = Nginx(self.proxy)
        generator = np.random.default_rng(0)
        for name in ("server", *self.hospitals):
            (self.folder / name).mkdir()
        for name in self.hospitals:
            rows = ["age,dose,sex,readmitted"]
            for _ in range(50):
                age, dose, sex = generator.integers(20, 90), generator.uniform(0, 10), generator.choice(["f", "m"])
                rows.append(f"{age},{dose:.1f},{sex},{'yes' if age + 10 * dose > 100 else 'no'}")
            (self.folder / name / "visits.csv").write_text("\n".join(rows) + "\n")

    def go(self, kind: str, where: str, text: str) -> str:
        """One block of the page, wherever it belongs; what it printed."""
        printed = ""
        if "for each hospital" in where:
            text = "".join(text.replace("amber", name) for name in self.hospitals)
        for name in ("server",) if where.startswith(("server", "operator")) else self.hospitals:
            own = self._own(text, name)
            if kind != "sh":
                path = self.folder / name / self._own(where.partition(": ")[2], name)
                path.parent.mkdir(exist_ok=True)
                path.write_text(own)
                continue
            for line in own.strip().splitlines():
                printed += self._run(name, line, stays="stays" in where)
        self._send()
        return printed

    def _own(self, text: str, name: str) -> str:
        """The same on this machine: its own name, and the address that there is here."""
        text = text if name == "server" else text.replace("amber", name)
        here = {"fl.example.org": "127.0.0.1", "0.0.0.0": "127.0.0.1"}  # noqa: S104  # it is what gets replaced
        here |= {
            "9092": str(self.port),
            "9091": str(self.inside),
            "$PWD/proxy": str(self.proxy),
            " proxy proxy": f" proxy {self.proxy}",
        }
        here |= self.there
        for there, instead in here.items():
            text = text.replace(there, instead)
        return text

    def _run(self, name: str, line: str, *, stays: bool) -> str:
        program, *words = shlex.split(line)
        if program == "nginx":
            assert words == ["-p", str(self.proxy), "-e", "logs/error.log", "-c", "nginx.conf"]
            self.nginx.start(self.port)
            return ""
        assert program == "incrowd"
        started = subprocess.Popen(
            [sys.executable, "-m", "incrowd", *words],
            cwd=self.folder / name,
            env={**os.environ, "PYTHONPATH": str(ROOT), "INCROWD_STATE": str(self.folder / name / "state")},
            stdout=subprocess.PIPE if not stays else subprocess.DEVNULL,
            stderr=subprocess.STDOUT if not stays else subprocess.DEVNULL,
        )
        if stays:
            self.stay.append(started)
            return ""
        printed = started.communicate(timeout=300)[0].decode()
        assert started.returncode == 0, f"{name}: {line}\n{printed}"
        return printed

    def _send(self) -> None:
        """The three kinds of file that travel."""
        invitation, enrolled = self.folder / "server" / "keys" / "invitation.json", self.folder / "server" / "enrolled"
        for name in self.hospitals:
            if invitation.exists():
                (self.folder / name / "invitation.json").write_bytes(invitation.read_bytes())
            for public in (self.folder / name).glob("*/*.pub"):
                enrolled.mkdir(exist_ok=True)
                (enrolled / public.name).write_bytes(public.read_bytes())
            if (signed := enrolled / f"{name}.crt").exists():
                (self.folder / name / name / "node.crt").write_bytes(signed.read_bytes())

    def end(self) -> None:
        for each in self.stay:
            each.send_signal(signal.SIGTERM)
        for each in self.stay:
            each.wait(30)
        self.nginx.stop()
        shutil.rmtree(self.proxy)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, Path(tempfile.mkdtemp(prefix="fleet-")))  # a socket's path is to be short
    yield made
    made.end()


def test_five_hospitals_come_from_nothing_to_a_model(world: World) -> None:
    steps = BLOCK.findall(PAGE.read_text())
    assert len(steps) >= 9
    printed = [world.go(*step) for step in steps]
    together = "\n".join(printed)
    assert together.count("SHA256:") >= 1 + 2 * len(HOSPITALS)
    tried = next(each for (_, _, text), each in zip(steps, printed, strict=True) if "--try" in text)
    assert all(re.search(rf"{name} +yes", tried) for name in HOSPITALS)
    assert "differentially private" in together
    assert (world.folder / "server" / "out" / "hearts" / "model.safetensors").exists()
    shown = next(each for (_, _, text), each in zip(steps, printed, strict=True) if "party show" in text)
    assert shown.count("evaluation") == len(HOSPITALS)
    assert shown.count("budget       epsilon 60, delta 1e-05") == len(HOSPITALS)
    assert not rows_on_the_server(world)


def rows_on_the_server(world: World) -> list[Path]:
    """The files of the server's machine that hold a row of anybody's table."""
    tables = [(world.folder / name / "visits.csv").read_text().splitlines()[1:] for name in HOSPITALS]
    rows = [row.encode() for table in tables for row in table]
    files = [path for path in (world.folder / "server").rglob("*") if path.is_file()]
    return [path for path in files if any(row in path.read_bytes() for row in rows)]
