"""The benchmark of the question how frequent classes are."""

import json

import label_distribution
import pytest


@pytest.mark.slow
def test_a_row_says_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    label_distribution.main(["--shares", "80/10/10", "--partition", "iid", "--seeds", "1", "--json"])
    row = json.loads([line for line in capsys.readouterr().out.splitlines() if line.startswith("{")][-1])
    assert (row["clients"], row["epsilon"], row["partition"]) == (100, 8.0, "iid")
    assert row["accuracies"]["asked"] > row["accuracies"]["not asked"] + 0.05
    assert row["accuracies"]["asked"] > row["majority"] - 0.02
