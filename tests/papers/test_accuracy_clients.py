"""Accuracy where clients are not shards of pictures: speakers of plays, and users as pfl-research has them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd import ConfigError
from incrowd.data import Examples, Split
from papers.accuracy.pfl_setup import honest_epsilon, scaled_noise
from papers.accuracy.plays import PLACES, SYMBOLS, as_ones, speakers_of
from papers.accuracy.table import Table

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


@pytest.mark.slow
def test_what_pfl_states_is_not_what_its_users_are_promised() -> None:
    noise = scaled_noise(30)
    honest = honest_epsilon(30, noise)
    assert honest > 20 * 2
    assert honest_epsilon(30, 20 * noise) < honest / 20


def test_settings_are_not_chosen_on_the_test_speakers(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"sets": (), "clients": (10,), "epsilons": (8.0,), "recipes": ("general",), "plays": True}
    with pytest.raises(ConfigError, match=r"held_out = 20: plays are measured on their test speakers"):
        Table(folder=tmp_path / "nowhere", **asked, bench={"held_out": 20})
    with pytest.raises(ConfigError, match=r"strict = 20: plays are measured on their test speakers"):
        Table(folder=tmp_path / "nowhere", **asked, bench={"strict": 20})
    Table(folder=tmp_path / "nowhere", **asked, bench={"held_out": 0})
