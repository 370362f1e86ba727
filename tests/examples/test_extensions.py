"""Every example of an extension keeps its contract, runs, and is named in its statement."""

import subprocess
import sys
from pathlib import Path

import pytest

EXTENSIONS = Path(__file__).parents[2] / "examples/extensions"
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


@pytest.mark.parametrize("example", SHOWN)
def test_an_extension_runs_and_is_named(example: str, tmp_path: Path) -> None:
    words = [sys.executable, str(EXTENSIONS / f"{example}.py"), str(tmp_path / "run")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert SHOWN[example] in " ".join(done.stdout.split())
