"""Rounds of two checkouts by turns."""

import json
import shutil
from pathlib import Path

import paired
import pytest

HERE = Path(paired.__file__).resolve().parents[1]


@pytest.mark.slow
def test_a_checkout_is_compared_with_a_copy_of_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("incrowd", "benchmarks"):
        shutil.copytree(HERE / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    # What the other is slower by has to be seen, or this would compare a checkout with itself.
    module = tmp_path / "incrowd" / "federated" / "fedavg.py"
    module.write_text(module.read_text() + "\n_apply = FedAvg.apply\n" + SLOWER)
    paired.main([str(tmp_path), "--work", "linear", "--batch", "100", "--pairs", "2", "--json"])
    [found] = json.loads(capsys.readouterr().out)
    assert (found["work"], found["batch"]) == ("linear", 100)
    assert found["median"] < 0.5


SLOWER = """
def _slowly(self, *given, **named):
    import time
    begin = time.process_time()
    while time.process_time() - begin < 1:
        pass
    return _apply(self, *given, **named)

FedAvg.apply = _slowly
"""
