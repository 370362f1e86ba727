"""deploy/: the image, the services and the units as texts, and the demonstration as processes, without Docker."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from incrowd.cli.parties import flower as app
from tests import nginx
from tests.flower.deployment import free_port, runs, wait_for

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
SERVICES: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
HOSPITALS = ["amber", "birch", "cedar"]
ONCE = ["keys", *(f"{name}-enrols" for name in HOSPITALS), "proxy", *(f"{name}-certified" for name in HOSPITALS)]
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def problems(dockerfile: str) -> list[str]:
    """The rules that an image breaks."""
    steps = re.findall(r"^([A-Z]+) +(.*)$", re.sub(r"\\\n *", " ", dockerfile), re.MULTILINE)
    of = {kind: [words for one, words in steps if one == kind] for kind, _ in steps}
    pinned = re.compile(r"\S+(:\d+\.\d+\.\d+\S*|@sha256:[0-9a-f]{64})( AS \w+)?")
    users = of.get("USER", [""])
    return [
        *("a base without an exact version" for base in of["FROM"] if not pinned.fullmatch(base)),
        *("root" for user in users[-1:] if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)),
        *("ADD fetches and unpacks: use COPY" for _ in of.get("ADD", [])),
        *("the whole context" for words in of.get("COPY", []) if re.match(r"\.\s", words)),
        *("a download" for words in of["RUN"] if re.search(r"\b(curl|wget|git)\b", words)),
        *("versions that move" for words in of["RUN"] if "pip install" in words and "--constraint" not in words),
        *("lists stay" for words in of["RUN"] if "apt-get" in words and "rm -rf /var/lib/apt/lists" not in words),
        *("a secret" for words in of.get("ENV", []) + of.get("ARG", []) if re.search(r"KEY|TOKEN|SECRET", words)),
    ]


def test_the_image_keeps_the_rules() -> None:
    assert problems(DOCKERFILE) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("python:3.11.11-slim-bookworm", "python:latest"),
        ("python:3.11.11-slim-bookworm", "python"),
        ("USER 10001:10001", "USER root"),
        ("USER 10001:10001\n", ""),
        ("COPY incrowd incrowd", "COPY . ."),
        ("COPY incrowd incrowd", "ADD https://example.org/incrowd.tar.gz ."),
        ("apt-get update", "curl https://example.org | sh"),
        ("--constraint constraints.txt ", ""),
        ("    && rm -rf /var/lib/apt/lists/* \\\n", ""),
        ("INCROWD_STATE=/srv/state", "INCROWD_TOKEN=1"),
    ],
)
def test_an_image_that_breaks_a_rule_is_found(right: str, wrong: str) -> None:
    assert right in DOCKERFILE
    assert problems(DOCKERFILE.replace(right, wrong)) != []


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_rights_that_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.keys() & {"privileged", "cap_add", "devices", "pid", "user"}
    assert service.get("ports", []) == (["9092:9092"] if name == "server" else [])
    assert not any("docker.sock" in volume for volume in service["volumes"])
    owner = name.removesuffix("-enrols").removesuffix("-certified")
    named = [volume for volume in service["volumes"] if volume.endswith(":/srv")]
    assert named == [f"{owner if owner in HOSPITALS else 'server'}:/srv"]
    assert name not in HOSPITALS or service["volumes"] == named  # it reads no volume that travels


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_has_no_rights_that_it_does_not_need(path: Path) -> None:
    unit = RawConfigParser(strict=False)
    unit.read_string(path.read_text())
    service = unit["Service"]
    assert service["User"] == "incrowd"
    assert service["ProtectSystem"] == "strict"
    assert (service["NoNewPrivileges"], service["PrivateTmp"], service["ProtectHome"]) == ("yes", "yes", "yes")
    assert service["CapabilityBoundingSet"] == ""
    assert service["ReadWritePaths"] == "/srv/incrowd"


def test_every_variable_in_a_file_is_one_of_an_option() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    known = {
        f"INCROWD_{command.upper()}_{str(option.name).upper()}"
        for command in ("serve", "join")
        for option in group.commands[command].params
    }
    texts = [path.read_text() for path in (*UNITS, DEPLOY / "compose.yaml", ROOT / "docs/containers.md")]
    assert {found for text in texts for found in re.findall(r"\bINCROWD_(?:SERVE|JOIN)_[A-Z_]+", text)} <= known


class Processes:
    """The services as processes: a volume is a folder, a host is loopback, a port is a free one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stay = folder, dict[str, subprocess.Popen[bytes]]()
        self.ports = {"9092": str(free_port()), "9091": str(free_port())}

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start one as its words in compose.yaml say."""
        service = SERVICES[name]
        places = dict(reversed(volume.removesuffix(":ro").split(":")) for volume in service["volumes"])

        def here(text: str) -> str:
            for inside, outside in places.items():
                place = DEPLOY / outside if outside.startswith(".") else self.folder / outside
                place.mkdir(exist_ok=True)
                text = re.sub(rf"(?<![\w.]){inside}\b", str(place), text)
            text = text.replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - it is replaced
            return re.sub("9092|9091", lambda port: self.ports[port[0]], "127.0.0.1" if text == "server" else text)

        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])
        image = dict(re.findall(r"(\w+)=(/srv\S*)", DOCKERFILE))
        stated = {key: here(value) for key, value in (image | service.get("environment", {})).items()}
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [here(word) for word in service["command"]],
                cwd=here("/srv"),
                env=os.environ | stated | {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": here("/srv")},
                stdout=log,
                stderr=log,
            )

    def wait(self, name: str, process: subprocess.Popen[bytes], seconds: float) -> None:
        """Wait for its end, which has to be a good one."""
        status = process.wait(seconds)
        assert status == 0, f"{name}:\n" + "\n".join(path.read_text() for path in self.folder.glob("*.log"))

    def end(self) -> None:
        for process in self.stay.values():
            process.send_signal(signal.SIGTERM)
        for process in self.stay.values():
            process.wait(30)


@pytest.fixture
def processes() -> Iterator[Processes]:
    folder = Path(tempfile.mkdtemp(prefix="deploy-"))  # a socket's path is to be short
    made = Processes(folder)
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(folder)


def test_a_service_comes_after_those_that_it_needs() -> None:
    order = [*ONCE, "server", "nginx", *HOSPITALS]
    assert sorted(order) == sorted(SERVICES)
    for place, name in enumerate(order):
        assert set(SERVICES[name].get("depends_on", {})) <= set(order[:place])


@pytest.mark.slow
@nginx.missing
@pytest.mark.timeout(400)
def test_three_hospitals_train_by_the_words_of_the_services(processes: Processes) -> None:
    for name in ONCE:
        processes.wait(name, processes.start(name), 120)
    server = processes.start("server")
    processes.stay = {"server": server, "nginx": processes.start("nginx")}
    processes.stay |= {name: processes.start(name) for name in HOSPITALS}
    wait_for(lambda: not runs(server.pid), 240)
    processes.wait("server", server, 5)
    out = processes.folder / "server/out/hearts"
    assert (out / "model.safetensors").exists()
    assert "amber, birch, cedar may claim" in (out / "statement.txt").read_text()
    rows = (processes.folder / "amber/visits.csv").read_bytes().splitlines()[1:]
    files = [path for path in (processes.folder / "server").rglob("*") if path.is_file()]
    assert not [path for path in files if rows[0] in path.read_bytes()]
    for name in HOSPITALS:
        processes.stay[name].send_signal(signal.SIGTERM)
        processes.wait(name, processes.stay[name], 30)
