"""The benchmark of the question how frequent classes are."""

import json

import class_shares
import numpy as np
import pytest


@pytest.mark.parametrize("shares", class_shares.SHARES.values(), ids=class_shares.SHARES)
def test_rows_are_of_classes_in_these_shares(shares: tuple[float, ...]) -> None:
    labels = class_shares.made_up(shares, 2000, seed=4).labels
    assert np.bincount(labels) / 2000 == pytest.approx(shares, abs=2e-3)


@pytest.mark.slow
def test_a_row_says_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    class_shares.main(["--shares", "80/10/10", "--partition", "iid", "--seeds", "1", "--json"])
    row = json.loads([line for line in capsys.readouterr().out.splitlines() if line.startswith("{")][-1])
    assert (row["clients"], row["epsilon"], row["partition"]) == (100, 8.0, "iid")
    assert row["accuracies"]["asked"] > row["accuracies"]["not asked"] + 0.05
    assert row["accuracies"]["asked"] > row["majority"] - 0.02
