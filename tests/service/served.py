"""A service in a process of its own, started as a user starts it."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from incrowd.drawdiscard import Specification


@dataclass(frozen=True)
class Service:
    """Where it listens, and its process."""

    url: str
    process: "subprocess.Popen[str]"

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.url + "/status.json", timeout=30) as reply:  # noqa: S310 - the service of this test
            found: dict[str, Any] = json.load(reply)
        return found


@contextmanager
def serving(folder: Path, asked: Specification) -> Iterator[Service]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_text(asked.to_json(), encoding="utf-8")
    words = [sys.executable, "-m", "incrowd", "serve", "spec.json", "--port", "0", "--json", "--open-admission"]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Service(json.loads(process.stdout.readline())["url"], process)
        finally:
            process.terminate()
            process.wait(30)
