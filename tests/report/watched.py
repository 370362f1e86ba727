"""Runs that go on while somebody watches, and a live page that is served as people serve it."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

from incrowd.runs.database import Database, Record


def begun(finished: Path, folder: Path, *, rounds: int = 2) -> Path:
    """A run that has taken so many of its rounds: a copy of one that is over, without its end."""
    shutil.copytree(finished, folder)
    for name in ("summary.json", "model.safetensors", "card.md", "statement.json", "statement.txt"):
        (folder / name).unlink(missing_ok=True)
    database = Database(folder / "run.sqlite")
    database._connection.execute("DELETE FROM rounds WHERE round >= ?", (rounds,))
    database.close()
    return folder


def another_round(finished: Path, folder: Path) -> int:
    """The run takes its next round, as the one did that is over."""
    over, database = Database(finished / "run.sqlite"), Database(folder / "run.sqlite")
    record: Record = over.rounds()[len(database.rounds())]
    database.add(record)
    over.close()
    database.close()
    return record.round


def finish(finished: Path, folder: Path) -> None:
    """The run is over, as the one is that it is a copy of."""
    for each in finished.iterdir():
        if each.is_file():
            shutil.copy2(each, folder / each.name)


@dataclass(frozen=True)
class Watching:
    """A live page that is served, and a client of it."""

    url: str

    def ask(
        self, path: str = "/", *, method: str = "GET", body: str | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, str], str]:
        line = HTTPConnection(urlsplit(self.url).netloc, timeout=20)
        try:
            line.request(method, path, body, dict(headers or {}))
            reply = line.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read().decode()
        finally:
            line.close()

    @contextmanager
    def events(self, query: str, headers: Mapping[str, str] | None = None) -> Iterator["Events"]:
        line = HTTPConnection(urlsplit(self.url).netloc, timeout=20)
        try:
            line.request("GET", f"/events?{query}", headers=dict(headers or {}))
            yield Events(line.getresponse())
        finally:
            line.close()


@dataclass
class Events:
    """What a server tells, event after event."""

    reply: HTTPResponse

    def next(self, kind: str = "") -> tuple[str, dict[str, str]]:
        """The next event, or the next of a kind: its number, and what it says."""
        number = said = name = ""
        while True:
            line = self.reply.readline().decode()
            if not line:
                raise EOFError
            field, _, value = line.rstrip("\n").partition(": ")
            if field == "id":
                number = value
            elif field == "event":
                name = value
            elif field == "data":
                said = value
            elif not line.strip() and name:
                if kind in ("", name):
                    return number, json.loads(said)
                name = ""


@contextmanager
def watching(*arguments: str) -> Iterator[Watching]:
    """`incrowd watch` of these arguments."""
    command = [sys.executable, "-m", "incrowd", "watch", *arguments, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Watching(json.loads(process.stdout.readline())["url"])
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
