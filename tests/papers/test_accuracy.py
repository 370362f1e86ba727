"""`incrowd bench-accuracy`: its sets, its rows, and what stands beside them."""

import gzip
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from incrowd import ConfigError, DataError, Federation, Private, SeededRandomness
from incrowd.data import Examples, iid
from papers.accuracy.ceiling import fitted
from papers.accuracy.measure import Bench, standard_error
from papers.accuracy.published import FIGURES, published
from papers.accuracy.sets import SETS, load_set
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


@pytest.mark.parametrize("name", [name for name in SETS if name != "letters" and "adult" not in name])
def test_every_set_is_two_parts_of_pictures(name: str, data: Path) -> None:
    split = load_set(name, data)
    assert split.name == name
    assert split.test is not None
    others = {"cifar10": (3, 32, 32), "cifar10-grey": (32, 32), "spot-sides": (3, 16, 16), "grain": (64, 64)}
    assert split.train.shape == others.get(name, (28, 28))
    assert split.train.shape == split.test.shape


def test_the_census_is_rows_of_stated_columns_or_numbers_as_they_are(data: Path) -> None:
    stated, raw = load_set("adult", data), load_set("adult-raw", data)
    assert len(stated.train) == len(raw.train) == 16
    assert stated.train.labels.tolist() == [0, 1] * 8
    assert np.abs(stated.train.values(slice(None))).max() == 1
    assert raw.train.values(slice(1)).tolist() == [[44, 90000, 14, 0, 0, 40]]


@pytest.mark.slow
def test_letters_are_drawn_the_same_each_time_and_none_is_blank(data: Path) -> None:
    one, two = load_set("letters", data), load_set("letters", data)
    assert np.array_equal(np.asarray(one.train.features), np.asarray(two.train.features))
    assert np.asarray(one.train.features).max(axis=(1, 2)).min() > 100
    assert one.train.classes == 10


def test_the_changed_digits_are_the_digits_changed(data: Path) -> None:
    digits = np.asarray(load_set("mnist", data).train.features).astype(int)
    changed = {name: np.asarray(load_set(name, data).train.features).astype(int) for name in SETS if "mnist-" in name}
    assert (changed["mnist-inverted"] == 255 - digits).all()
    assert (np.sort(changed["mnist-permuted"].reshape(300, -1)) == np.sort(digits.reshape(300, -1))).all()
    assert (changed["mnist-permuted"] != digits).any()
    assert (changed["mnist-noise"] >= digits).all()
    assert changed["mnist-noise"].max() == digits.max()
    moves = [(-4, 0), (4, 0), (0, -4), (0, 4)]
    inner = (slice(None), slice(4, -4), slice(4, -4))
    moved = [(np.roll(digits, move, (1, 2))[inner] == changed["mnist-shifted"][inner]).all((1, 2)) for move in moves]
    assert np.any(moved, axis=0).all()
    assert all(one.any() for one in moved)


def test_made_up_sets_are_the_same_each_time_and_raw_pixels_tell_their_classes(data: Path) -> None:
    least_of = {"spot-places": 0.99, "spot-sides": 0.95, "templates": 0.85, "levels": 0.8, "grain": 0.8}
    for name, least in least_of.items():
        split = load_set(name, data)
        assert split.test is not None
        assert np.array_equal(split.train.features, load_set(name, data).train.features)
        train, test = (np.asarray(one.features).reshape(len(one), -1) for one in (split.train, split.test))
        assert train.min() >= 0
        assert train.max() <= 1
        means = np.stack([train[split.train.labels == each].mean(0) for each in range(split.train.classes or 0)])
        nearest = (test @ means.T - np.square(means).sum(1) / 2).argmax(1)
        assert (nearest == split.test.labels).mean() > least, name


def test_an_unknown_set_and_a_missing_file_are_refused_by_name(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="data_set = 'mnits'"):
        load_set("mnits", data)
    with pytest.raises(DataError, match=r"train\.npz: give a file"):
        load_set("cifar10", tmp_path)


def test_published_figures_are_those_of_the_same_promise() -> None:
    assert {one.source.split(",")[0] for one in published("mnist", unit="record", epsilon=3, delta=1e-5)} == {
        "Tramer and Boneh 2021"
    }
    assert published("mnist", unit="client", epsilon=3, delta=1e-5) == []
    assert {one.unit for one in FIGURES} == {"client", "record"}


def test_the_ceiling_is_a_fit_without_noise() -> None:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(400, 5)).astype(np.float32)
    labels = (features @ generator.normal(size=(5, 3))).argmax(1)
    parts = [
        Examples(features=features[rows], labels=labels[rows], classes=3) for rows in (slice(300), slice(300, 400))
    ]
    assert fitted(*parts) > 0.95


def test_the_standard_error_is_that_of_the_mean() -> None:
    assert standard_error([1.0, 2.0, 3.0]) == pytest.approx(1 / 3**0.5)
    assert standard_error([1.0]) is None


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


@pytest.mark.slow
def test_later_seeds_go_on_where_others_ended(bench_accuracy: Command, data: Path) -> None:
    asked = ("--data", str(data), "--sets", "fashion", "--clients", "10", "--recipe", "general", "--no-ceiling")
    (whole,) = bench_accuracy(*asked, "--seeds", "3", "--json").object()["rows"]
    (later,) = bench_accuracy(*asked, "--seeds", "2", "--first-seed", "1", "--json").object()["rows"]
    assert (whole["first_seed"], later["first_seed"]) == (0, 1)
    assert later["accuracies"] == whole["accuracies"][1:]
    assert later["accuracies"] != whole["accuracies"][:2], "or which seeds they are would not be seen"


def test_drawings_may_be_left_out(data: Path, tmp_path: Path) -> None:
    names = []
    for drawings in (True, False):
        bench = Bench.on(load_set("fashion", data), held_out=0, cache=tmp_path, drawings=drawings)
        dealt = iid(bench.split.train.labels, clients=10, randomness=SeededRandomness(0))
        federation = Federation.by_recipe("images", bench.held_by(dealt), privacy=Private(epsilon=8.0, delta=1e-3))
        features = bench._as_told(federation).settings.features
        assert features.name == "pictures"
        assert features.cache == str(tmp_path)
        names.append(features.drawn)
    assert names == [0.5, 0.0]


def test_there_is_no_seed_below_zero(data: Path) -> None:
    with pytest.raises(ConfigError, match=r"first_seed = -1"):
        Bench.on(load_set("fashion", data), held_out=0, first_seed=-1)


@pytest.mark.slow
def test_records_are_clients_of_their_own(bench_accuracy: Command, data: Path) -> None:
    asked = (
        "--data",
        str(data),
        "--sets",
        "mnist",
        "--records",
        "--epsilon",
        "3",
        "--recipe",
        "general",
        "--seeds",
        "1",
    )
    said = bench_accuracy(*asked).out
    (row,) = [line for line in said.splitlines() if "general" in line]
    assert [cell.strip() for cell in row.split("│")][2:6] == ["record", "300", "3", "general"]
    assert "published beside it: mnist, record, epsilon 3: 0.987" in said, "which is so of a delta of 1e-5 alone"


@pytest.mark.slow
def test_a_row_of_handwriting_has_its_own_features(bench_accuracy: Command, data: Path) -> None:
    asked = ("--data", str(data), "--sets", "mnist", "--clients", "10", "--recipe", "handwriting", "--seeds", "1")
    (row,) = bench_accuracy(*asked, "--json").object()["rows"]
    assert row["recipe"] == "handwriting"
    assert row["without_noise"] > 0.9


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
