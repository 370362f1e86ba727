"""`incrowd bench-accuracy`: its sets, its rows, and what stands beside them."""

import gzip
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from incrowd import ConfigError
from papers.accuracy.measure import Bench
from papers.accuracy.published import FIGURES, published
from papers.accuracy.sets import load_set
from tests.command import Command, command
from tests.papers.small import write_set

HEADER = (
    "age,workclass,fnlwgt,education,education_num,marital_status,occupation,relationship,race,sex,capital_gain,"
    "capital_loss,hours_per_week,native_country,income"
)
ROWS = "44,?,90000,Masters,14,Divorced,Sales,Wife,Other,Female,0,0,40,Peru,<=50K\n50,Private,5,HS-grad,9,Widowed,?,"
ROWS += "Husband,White,Male,9000,0,60,United-States,>50K"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the sets are looked for in: tiny ones."""
    folder = tmp_path_factory.mktemp("sets")
    write_set(folder / "mnist")
    write_set(folder / "fashion")
    (folder / "cifar10").mkdir()
    for part in ("train", "test"):
        write_jpegs(folder / "cifar10" / f"{part}.npz")
    (folder / "adult").mkdir()
    with gzip.open(folder / "adult" / "adult.csv.gz", "wt") as file:
        file.write(f"{HEADER}\n" + 10 * f"{ROWS}\n")
    return folder


def write_jpegs(path: Path) -> None:
    generator = np.random.default_rng(0)
    files = []
    for _ in range(6):
        file = io.BytesIO()
        Image.fromarray(generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(file, "jpeg")
        files.append(file.getvalue())
    ends = np.cumsum([len(file) for file in files])
    np.savez(path, jpeg=np.frombuffer(b"".join(files), np.uint8), ends=ends, labels=np.arange(6) % 3)


@pytest.fixture
def bench_accuracy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return command(monkeypatch, capsys, "bench-accuracy")


def test_published_figures_are_those_of_the_same_promise() -> None:
    assert {one.source.split(",")[0] for one in published("mnist", unit="record", epsilon=3, delta=1e-5)} == {
        "Tramer and Boneh 2021"
    }
    assert published("mnist", unit="client", epsilon=3, delta=1e-5) == []
    assert {one.unit for one in FIGURES} == {"client", "record"}


@pytest.mark.slow
def test_a_row_is_json_and_a_table(bench_accuracy: Command, data: Path) -> None:
    asked = ("--data", str(data), "--sets", "fashion", "--clients", "10", "--recipe", "general", "--seeds", "2")
    found = bench_accuracy(*asked, "--json")
    (row,) = found.object()["rows"]
    assert (row["unit"], row["clients"], row["epsilon"], row["delta"]) == ("client", 10, 8.0, 0.01)
    assert len(row["accuracies"]) == 2
    assert row["accuracy"] == pytest.approx(sum(row["accuracies"]) / 2)
    assert row["majority"] == pytest.approx(0.1)
    assert row["without_noise"] > 0.9
    assert "fashion, general, 10 clients" in found.err
    table = bench_accuracy(*asked, "--no-ceiling")
    assert "without noise" in table.out


def test_held_out_examples_take_the_place_of_the_test_examples(data: Path) -> None:
    split = load_set("fashion", data)
    bench = Bench.on(split, held_out=50)
    assert len(bench.test) == 50
    assert len(bench.split.train) == 250
    assert split.test is not None
    assert Bench.on(split, held_out=0).test is split.test


def test_strictly_nobody_has_the_examples_that_settings_were_chosen_on(data: Path) -> None:
    split = load_set("mnist", data)
    chosen, strict = Bench.on(split, held_out=50), Bench.on(split, held_out=0, strict=50)
    assert strict.test is split.test
    assert np.array_equal(strict.split.train.features, chosen.split.train.features)
    assert len(strict.split.train) == len(split.train) - 50
    with pytest.raises(ConfigError, match="strict = 50: leave out one"):
        Bench.on(split, held_out=50, strict=50)
    for name in ("held_out", "strict"):
        with pytest.raises(ConfigError, match=f"{name} = -1"):
            Bench.on(split, **{"held_out": 0, name: -1})
