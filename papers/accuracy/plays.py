"""Shakespeare's speakers are natural clients: each knows its own lines, and the next character is to be told.

An example is the four characters before it, as tokens, or as ones where a symbol stands in a place (`as_ones`). A fifth
of the speakers are held out, whom no model has heard.
"""

import gzip
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from harness.arrays import Integers
from harness.seeds import Entry
from incrowd import DataError, Federation, Private
from incrowd.data import Examples, Partition, Split, by_column
from papers.accuracy.measure import Bench, seeded

Piece = tuple[Integers, Integers]
"""What stands before some characters of a speaker [n, places], the nearest last, and the characters [n]."""

SYMBOLS = "\n abcdefghijklmnopqrstuvwxyz',.;:!?-&$3"
PLACES = 4
MOST = 1000
"""Of a speaker no more characters than these are learned from, spread evenly over the lines: a public bound."""

HELD_OUT = 0.2

_SPEAKER = re.compile(r"(?:\A|\n\n)([A-Z][A-Za-z .'-]*):\n")


def load_plays(folder: Path) -> tuple[Split, Partition]:
    """The speakers of `shakespeare/plays.txt.gz`, each with what follows which characters.

    Edge cases: case is dropped, and so are characters that are not in `SYMBOLS`.
    """
    path = folder / "shakespeare" / "plays.txt.gz"
    try:
        text = gzip.decompress(path.read_bytes()).decode("utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}); give the folder that has it") from error
    return speakers_of(text)


def speakers_of(text: str) -> tuple[Split, Partition]:
    """The lines of each speaker who says more than `PLACES` characters; a fifth of the speakers is for testing."""
    _, *parts = _SPEAKER.split(text)
    said: dict[str, str] = {}
    for speaker, lines in zip(parts[::2], parts[1::2], strict=True):
        said[speaker] = said.get(speaker, "") + lines.strip() + "\n"
    pieces = [piece for piece in map(_pieces, said.values()) if len(piece[1])]
    if len(pieces) < 2:
        raise DataError("there are not two speakers: give a text of lines NAME: and what they say below")
    order = np.random.default_rng(0).permutation(len(pieces))
    aside = max(1, round(HELD_OUT * len(pieces)))
    train, test = ([pieces[place] for place in some] for some in (order[aside:], order[:aside]))
    partition = by_column(np.repeat(np.arange(len(train)), [len(labels) for _, labels in train]))
    return Split(name="plays", train=_examples(train), test=_examples(test)), partition


def _examples(pieces: Sequence[Piece]) -> Examples:
    seen, following = zip(*pieces, strict=True)
    return Examples(features=np.concatenate(seen), labels=np.concatenate(following), classes=len(SYMBOLS))


def as_ones(split: Split) -> Split:
    """The same with ones where a symbol stands in a place: what who knows nothing of tokens sees."""
    test = split.test and replace(split.test, features=_ones(split.test.features))
    return replace(split, train=replace(split.train, features=_ones(split.train.features)), test=test)


def _ones(tokens: Any) -> NDArray[np.uint8]:
    """[n, places * symbols], the nearest place first."""
    ones: NDArray[np.uint8] = np.eye(len(SYMBOLS), dtype=np.uint8)[tokens[:, ::-1]].reshape(len(tokens), -1)
    return ones


def _pieces(lines: str) -> Piece:
    symbols = np.array([SYMBOLS.index(character) for character in lines.lower() if character in SYMBOLS], np.int64)
    ends = np.arange(PLACES, len(symbols))
    if len(ends) > MOST:
        ends = ends[np.linspace(0, len(ends) - 1, MOST).astype(np.int64)]
    return symbols[ends[:, None] + np.arange(-PLACES, 0)], symbols[ends]


class Reader(nn.Module):
    """A small network that reads one symbol after the other (a GRU): what a linear model on n-grams stands beside."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(len(SYMBOLS), 16)
            self.recurrent = nn.GRU(16, 32, batch_first=True)
            self.head = nn.Linear(32, len(SYMBOLS))

    def forward(self, tokens: Tensor) -> Tensor:
        """A number for each symbol that may follow."""
        states, _ = self.recurrent(self.embedding(tokens))
        outputs: Tensor = self.head(states[:, -1])
        return outputs


def plays_row(bench: Bench, speakers: Partition, recipe: str, *, epsilon: float, network: bool = False) -> Entry:
    """Next characters of speakers whom nobody heard, each training speaker being a client; by a `network`, or by the
    recipe's own model.
    """
    clients = speakers.clients
    delta = 1 / (10 * clients)
    shown = f"{recipe}, a GRU" if network else recipe
    bench.say(f"plays, {shown}, {clients} speakers, epsilon {epsilon:g}")
    privacy = Private(epsilon=epsilon, delta=delta)
    bench = replace(bench, ceiling=bench.ceiling and not network)  # which is a linear model's

    def begin(seed: int) -> Federation:
        module, held = Reader(seed) if network else None, bench.held_by(speakers)
        return Federation.by_recipe(recipe, held, privacy=privacy, module=module, run=seeded(seed))

    return bench.row(begin, recipe=shown, unit="client", clients=clients, epsilon=epsilon, delta=delta)
