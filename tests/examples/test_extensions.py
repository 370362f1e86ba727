"""Every example of an extension keeps its contract, runs, and is named in its statement."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

EXTENSIONS = Path(__file__).parents[2] / "examples/extensions"
RUNS = """
import os, runpy, sys
import incrowd.testing, incrowd.runs.run
source, folder, *examples = sys.argv[1:]
for example in examples:
    if os.fork() == 0:
        to = os.open(f"{folder}/{example}.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(to, 1)
        os.dup2(to, 2)
        sys.argv[1:] = [f"{folder}/{example}"]
        runpy.run_path(f"{source}/{example}.py", run_name="__main__")
        sys.exit()
    os.wait()
"""
NAMED = "third-party code, tried on made-up input and not verified: "
SHOWN = {
    "accountant": f"{NAMED}accountant cautious",
    "clip": f"{NAMED}clip smooth",
    "feature_map": f"{NAMED}feature map thermometer",
    "local_algorithm": f"{NAMED}algorithm FedProx",
    "data_source": "'clients': 3",
    "sampler": f"{NAMED}sampler blocks",
    "server_optimizer": f"{NAMED}server optimizer lion",
    "tracker": "6 rows in",
    "transport": "the server saw sums alone",
}


def test_there_is_one_for_each() -> None:
    assert {path.stem for path in EXTENSIONS.glob("*.py")} == set(SHOWN)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What each prints: processes of their own, copies of one that has imported what takes seconds."""
    folder = tmp_path_factory.mktemp("extensions")
    done = subprocess.run([sys.executable, "-c", RUNS, str(EXTENSIONS), str(folder), *SHOWN], check=False, cwd=folder)
    assert done.returncode == 0
    return {example: " ".join((folder / f"{example}.txt").read_text().split()) for example in SHOWN}


@pytest.mark.parametrize("example", SHOWN)
def test_an_extension_runs_and_is_named(example: str, printed: Mapping[str, str]) -> None:
    assert "Traceback" not in printed[example], printed[example]
    assert SHOWN[example] in printed[example]
