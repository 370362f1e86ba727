"""The example runs: a service, devices as its clients, a prediction; started again, it goes on within their limits."""

import csv
import gzip
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.drawdiscard.mail import charges

EXAMPLE = Path(__file__).parents[2] / "examples/phishing/run.py"


def words(out: Path, *more: str) -> list[str]:
    return [sys.executable, str(EXAMPLE), "--out", str(out), *more]


def run(out: Path, *more: str) -> str:
    done = subprocess.run(words(out, *more), capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def paid(folder: Path) -> list[int]:
    return [charges(path) for path in sorted(folder.glob("device-*.ledger"))]


def counted(said: str, what: str) -> int:
    return sum(int(count) for count in re.findall(rf"(\d+) {what}", said))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_devices_contribute_over_http_and_the_service_predicts(tmp_path: Path) -> None:
    said = run(tmp_path, "--devices", "6", "--times", "2")
    assert "the service is at http://127.0.0.1:" in said
    assert counted(said, "accepted") + counted(said, "unlike") == 12
    assert re.search(r"right about \d+\.\d% of \d{3} URLs of hosts that no device has visited", said)
    assert paid(tmp_path / "made-up") == [2] * 6
    again = run(tmp_path, "--devices", "6", "--times", "9")
    assert counted(again, "at their limit") == 6
    assert paid(tmp_path / "made-up") == [10] * 6


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_is_killed_and_goes_on(tmp_path: Path) -> None:
    small = ("--devices", "8", "--times", "1")
    first = subprocess.Popen(words(tmp_path, *small), start_new_session=True, stdout=subprocess.DEVNULL)
    while not list(tmp_path.glob("*/*.ledger")) and first.poll() is None:
        time.sleep(0.01)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    said = run(tmp_path, *small)
    assert counted(said, "accepted") + counted(said, "repeated") + counted(said, "unlike") == 8
    assert set(paid(tmp_path / "made-up")) <= {1, 2}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_takes_urls_from_a_folder(tmp_path: Path) -> None:
    place = tmp_path / "data/phishing/urls.csv.gz"
    place.parent.mkdir(parents=True)
    with gzip.open(place, "wt", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "url"])
        writer.writerows([number % 2, f"https://host{number}.example/a?b=1&amp;c={number}"] for number in range(200))
    said = run(tmp_path, "--devices", "3", "--times", "1", "--data", str(tmp_path / "data"))
    assert counted(said, "accepted") + counted(said, "unlike") == 3
    assert "?b=1&c=" in said
    assert "&amp;" not in said
