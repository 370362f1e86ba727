"""The benchmark of the recipe for tables: the parts that decide which rows are seen."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import tables


def written(folder: Path, rows: int) -> Path:
    (folder / "phishing").mkdir()
    with gzip.open(folder / "phishing" / "urls.csv.gz", "wt") as file:
        file.write("label,url\n" + "".join(f"{k % 2},http://{'ab'[k % 2]}{k}.test/\n" for k in range(rows)))
    return folder


def test_rows_of_training_test_and_validation_are_others(tmp_path: Path) -> None:
    folder = written(tmp_path, 50)
    train, test, columns = tables.parts("phishing", folder, held_out=False)
    same, validation, _ = tables.parts("phishing", folder, held_out=True)
    assert np.array_equal(train.features, same.features)
    assert [len(part) for part in (train, test, validation)] == [30, 10, 10]
    rows = {part.tobytes() for part in np.concatenate([train.features, test.features, validation.features])}
    assert len(rows) == 50
    assert columns.features == ("url",)


@pytest.mark.slow
def test_a_row_says_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path, 200)
    wanted = ["--clients", "40", "--epsilon", "8", "--partition", "iid", "--seeds", "1"]
    tables.main(["--data", str(folder), "--set", "phishing", *wanted])
    assert "40 clients, iid, epsilon 8: " in capsys.readouterr().out
