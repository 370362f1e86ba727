"""Accuracy where clients are not shards of pictures: speakers of plays, and users as pfl-research has them."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd import ConfigError, DataError
from incrowd.data import Examples, Split
from papers.accuracy.measure import Bench
from papers.accuracy.pfl_setup import as_it_is, as_we_would, honest_epsilon, partition, scaled_noise
from papers.accuracy.plays import PLACES, SYMBOLS, as_ones, load_plays, speakers_of
from papers.accuracy.table import Table
from tests.command import command

LINES = {
    "Anna": "who is there? it is dark.",
    "First Guard": "nay, answer me: stand.",
    "Bob": "long live the king!",
    "Old Man": "the night is cold; i go.",
    "Clown": "a riddle, a riddle!",
}
PLAY = "\n".join(f"{speaker}:\n{line}\n" for speaker, line in LINES.items())


def pictures(count: int) -> Split:
    """Coloured noise of ten classes."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, 3, 16, 16), dtype=np.uint8)
    examples = Examples(features=pixels, labels=np.arange(count) % 10, classes=10, scale=1 / 255)
    return Split(name="cifar10", train=examples, test=examples.some(slice(10)))


def test_speakers_are_clients_and_those_for_testing_are_others() -> None:
    split, speakers = speakers_of(PLAY)
    assert split.test is not None
    assert speakers.clients == 4
    ones = np.asarray(as_ones(split).train.features).reshape(len(split.train), PLACES, len(SYMBOLS))
    assert (ones.sum(2) == 1).all()
    assert np.array_equal(ones.argmax(2)[:, ::-1], split.train.features)
    whole = "".join(SYMBOLS[label] for label in [*split.train.labels, *split.test.labels])
    assert sorted(whole) == sorted("".join(f"{line}\n"[PLACES:] for line in LINES.values()))
    first = SYMBOLS.index(next(iter(LINES.values()))[PLACES - 1])
    assert any(ones[speakers.indices[speakers.offsets[client]], 0].argmax() == first for client in range(4))


def test_one_speaker_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not two speakers"):
        speakers_of("Anna:\nnobody answers\n\nBob:\nno\n")
    with pytest.raises(DataError, match="cannot be read"):
        load_plays(tmp_path)


@pytest.mark.slow
def test_what_pfl_states_is_not_what_its_users_are_promised() -> None:
    noise = scaled_noise(30)
    honest = honest_epsilon(30, noise)
    assert honest > 20 * 2
    assert honest_epsilon(30, 20 * noise) < honest / 20


@pytest.mark.parametrize("name", ["iid", "dirichlet"])
def test_every_image_is_one_user_s(name: str) -> None:
    bench = Bench(split=pictures(300))
    users = partition(name, bench, 0)
    assert users.clients == 300
    assert sorted(users.indices.tolist()) == list(range(300))


def test_handwriting_is_for_grey_pictures_alone(tmp_path: Path) -> None:
    asked = Table(folder=tmp_path, sets=(), clients=(), epsilons=(), recipes=("images", "handwriting", "tables"))
    colour = pictures(2)
    pixels = np.zeros((2, 28, 28), np.uint8)
    grey = Split(name="grey", train=Examples(features=pixels, labels=np.arange(2), classes=2, scale=1 / 255))
    assert asked.fitting(colour) == ("images",)
    assert asked.fitting(grey) == ("images", "handwriting")


@pytest.mark.slow
def test_speakers_stand_in_the_table_and_images_is_not_for_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "plays.txt.gz").write_bytes(gzip.compress(PLAY.encode()))
    monkeypatch.chdir(tmp_path)
    run = command(monkeypatch, capsys, "bench-accuracy")
    found = run("--data", str(tmp_path), "--sets", "", "--plays", "--quick", "--no-ceiling", "--json").object()
    assert [row["recipe"] for row in found["rows"]] == ["text", "text, a GRU", "general"]
    for row in found["rows"]:
        assert (row["data_set"], row["clients"], row["seeds"]) == ("plays", 4, 2)
        assert (row["unit"], row["epsilon"], row["delta"]) == ("client", 8.0, 1 / 40)
        assert row["without_noise"] is None


def test_numbers_that_make_no_sense_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"sets": ("mnist",), "clients": (10,), "epsilons": (8.0,), "recipes": ("general",)}
    for field, value in (("pfl", -1), ("clients", (0,)), ("epsilons", (-1.0,)), ("sets", ("mnits",))):
        with pytest.raises(ConfigError):
            Table(folder=tmp_path / "nowhere", **{**asked, field: value})


def test_settings_are_not_chosen_on_the_test_speakers(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"sets": (), "clients": (10,), "epsilons": (8.0,), "recipes": ("general",), "plays": True}
    with pytest.raises(ConfigError, match=r"held_out = 20: plays are measured on their test speakers"):
        Table(folder=tmp_path / "nowhere", **asked, bench={"held_out": 20})
    with pytest.raises(ConfigError, match=r"strict = 20: plays are measured on their test speakers"):
        Table(folder=tmp_path / "nowhere", **asked, bench={"strict": 20})
    Table(folder=tmp_path / "nowhere", **asked, bench={"held_out": 0})


@pytest.mark.slow
def test_pfl_s_own_setting_stands_beside_its_honest_epsilon() -> None:
    bench = Bench(split=pictures(60), seeds=1, ceiling=False)
    own = as_it_is(bench, "iid", 2)
    assert own["epsilon"] > own["stated_epsilon"] == 2.0
    ours = as_we_would(bench, "dirichlet", "general")
    assert (ours["epsilon"], ours["delta"], ours["partition"]) == (2.0, 1e-6, "dirichlet")
