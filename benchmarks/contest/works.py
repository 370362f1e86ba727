"""What is measured: a model, a cohort of clients and a batch size, the same for every competitor."""

import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from contest.modules import LENGTH, NETWORKS, TOKENS, PlainCNN
from harness import checks
from incrowd import ConfigError, Local, SeededRandomness
from incrowd.data import Clients, Examples, load_mnist, sorted_shards
from incrowd.learning import Model, draw_batches, mlp, small_cnn

LEARNING_RATE, CLIP_NORM, NOISE_MULTIPLIER = 0.1, 1.0, 1.0
RANDOMNESS = SeededRandomness(seed=0)
"""Where data, first weights and batches come from, so that every competitor has the same."""
IMAGES = 60_000
"""How many examples there are for all clients together."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Every client of a cohort makes one pass over its examples; contributions are clipped, summed and noised.

    `widths` are those of a perceptron, of one hidden layer if it is `normalised`; None is the small CNN. In `dense`
    images every pixel that is 0 is made 1 of 255. A CNN that is somebody's `own` our engine gets as it is written;
    so it does a `network` of `contest.modules`, over images or made-up `tokens`.
    """

    name: str
    widths: tuple[int, ...] | None
    normalised: bool = False
    dense: bool = False
    own: bool = False
    network: str | None = None
    tokens: bool = False
    cohort: int = 100
    examples: int = 600

    def of(self, *, clients: int | None, examples: int | None) -> "Work":
        """The same for so many clients with so many examples each. Edge cases: more than there are are refused."""
        work = replace(
            self,
            cohort=self.cohort if clients is None else clients,
            examples=self.examples if examples is None else examples,
        )
        checks.count(clients=work.cohort, examples=work.examples)
        checks.at_most(IMAGES // work.examples, "60,000 examples for all", clients=work.cohort)
        return work

    def model(self) -> Model:
        """The model as our engine takes it."""
        own = self.own or self.network is not None
        return small_cnn() if self.widths is None and not own else Model(self.module(), fresh=True)

    def module(self) -> nn.Module:
        """The same as a torch user would write it down, its parameters in the same order."""
        if self.network is not None:
            with torch.random.fork_rng():
                torch.manual_seed(0)  # what is not drawn anew, embeddings say, has to be the same everywhere
                return NETWORKS[self.network]()
        if self.widths is None:
            return PlainCNN()
        if not self.normalised:
            return mlp(self.widths).module
        inputs, hidden, outputs = self.widths
        layers = nn.Linear(inputs, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, outputs)
        return nn.Sequential(nn.Flatten(), *layers)

    @property
    def operations(self) -> int:
        """Floating point operations of a client's training: dense, without the gradient for the input."""
        if self.network is not None:
            return _counted(self) * self.examples
        layers = (
            _CNN_LAYERS if self.widths is None else [2 * inputs * outputs for inputs, outputs in pairwise(self.widths)]
        )
        return (3 * sum(layers) - layers[0]) * self.examples


WORKS = {
    work.name: work
    for work in (
        Work(name="linear", widths=(784, 10)),
        Work(name="mlp", widths=(784, 200, 10)),
        Work(name="mlp600", widths=(784, 600, 100, 10)),
        Work(name="cnn", widths=None, cohort=8),
        Work(name="normed", widths=(784, 200, 10), normalised=True),
        Work(name="dense", widths=(784, 200, 10), dense=True),
        Work(name="own-cnn", widths=None, own=True, cohort=8),
        Work(name="cnn-gn", widths=None, network="cnn-gn", cohort=8),
        Work(name="transformer", widths=None, network="transformer", tokens=True, cohort=20),
        Work(name="gru", widths=None, network="gru", tokens=True, cohort=20),
        Work(name="lstm", widths=None, network="lstm", tokens=True, cohort=20),
    )
}


def _counted(work: Work) -> int:
    """The floating point operations of one example, forth and back, as torch counts them. Of an LSTM, which is a single
    operation on a processor, it counts nothing there.
    """
    module, example = (
        work.module(),
        torch.from_numpy(_images(None, dense=False, tokens=work.tokens).values(slice(0, 1))),
    )
    device = "meta" if any(isinstance(part, nn.LSTM) for part in module.modules()) else "cpu"
    with FlopCounterMode(display=False) as counter:
        module.to(device)(example.to(device)).sum().backward()
    return int(counter.get_total_flops())


_CNN_LAYERS = [2 * 24 * 24 * 32 * 25, 2 * 8 * 8 * 64 * 800, 2 * 1024 * 128, 2 * 128 * 10]


OWN = ("records", "simulation", "service")
"""What is no work of clients, and is measured in a way of its own."""


def named(name: str) -> Work:
    """The work of this name. Edge cases: an unknown one is refused."""
    if name not in WORKS:
        raise ConfigError(field="work", value=name, remedy=f"give one or several of {', '.join((*WORKS, *OWN))}")
    return WORKS[name]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One work at one batch size, on MNIST from a folder or on synthetic images.

    It is small and compares by value, so it can be sent to another process, which then finds the very same data.
    """

    work: Work
    batch_size: int
    folder: Path | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        checks.count(batch_size=self.batch_size)

    def to_json(self) -> str:
        """The task as text, for another process."""
        folder = None if self.folder is None else str(self.folder)
        form = {"work": asdict(self.work), "batch_size": self.batch_size, "folder": folder, "device": self.device}
        return json.dumps(form)

    @classmethod
    def from_json(cls, text: str) -> "Task":
        """The task that `to_json` wrote."""
        form = json.loads(text)
        widths, folder = form["work"].pop("widths"), form["folder"]
        work = Work(**form["work"], widths=None if widths is None else tuple(widths))
        folder = None if folder is None else Path(folder)
        return cls(work=work, batch_size=form["batch_size"], folder=folder, device=form["device"])

    @property
    def name(self) -> str:
        """How results call it."""
        return f"{self.work.name} b{self.batch_size}"

    @property
    def local(self) -> Local:
        """What a client does."""
        return Local(learning_rate=LEARNING_RATE, batch_size=self.batch_size)

    @property
    def data(self) -> Clients:
        """The clients of the cohort, each with examples of at most two classes (as in McMahan et al. 2017)."""
        return _partitioned(
            self.folder, self.work.cohort, self.work.examples, dense=self.work.dense, tokens=self.work.tokens
        )

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """All images as floats and all labels, as a torch user would keep them: where it is computed."""
        images, labels = _tensors(self.folder, dense=self.work.dense, tokens=self.work.tokens)
        return images.to(self.device), labels.to(self.device)

    @property
    def start(self) -> Tensor:
        """The first weights, as one vector."""
        return self.work.model().initial(RANDOMNESS)

    def rows(self, client: int, *, round: int) -> Tensor:
        """The numbers of a client's examples, in the order in which this round's batches take them."""
        own = self.data.client(client)
        drawn = draw_batches(len(own), self.local, randomness=RANDOMNESS, round=round, client=client)
        counted = np.arange(drawn.width) < drawn.sizes[:, None]
        return torch.from_numpy(own[drawn.positions[counted]].astype(np.int64))


def synthetic() -> Examples:
    """60,000 images of 28 x 28 bytes in ten classes: a fifth of the pixels, all within a disk, are not zero.

    So many pixels of MNIST are not zero, and a third of them are zero in all examples of a client, as here.
    """
    labels = np.repeat(np.arange(10), 6000)
    angle = 2 * np.pi * np.arange(10)[:, None, None] / 10
    y, x = np.mgrid[-1:1:28j, -1:1:28j]
    squares = (x - 0.1 * np.cos(angle)) ** 2 + (y - 0.1 * np.sin(angle)) ** 2
    chance: NDArray[np.uint8] = (256 * 0.65 * np.clip(1 - squares / 0.9**2, 0, None)).astype(np.uint8)
    images = RANDOMNESS.stream("images").bits(60_000 * 28 * 28 // 8).view(np.uint8).reshape(10, 6000, 28, 28).copy()
    np.multiply(255 - images, images < chance[:, None], out=images)
    return Examples(features=images.reshape(-1, 28, 28), labels=labels, classes=10, scale=1 / 255)


def made_up_tokens() -> Examples:
    """60,000 sequences of tokens in ten classes."""
    bits = RANDOMNESS.stream("tokens").bits(60_000 * LENGTH // 8).view(np.uint8).reshape(-1, LENGTH)
    return Examples(features=(bits % TOKENS).astype(np.int64), labels=np.repeat(np.arange(10), 6000), classes=10)


@lru_cache(maxsize=1)
def _images(folder: Path | None, *, dense: bool, tokens: bool) -> Examples:
    if tokens:
        return made_up_tokens()
    images = synthetic() if folder is None else load_mnist(folder / "mnist").train
    return replace(images, features=np.maximum(images.features, 1)) if dense else images


@lru_cache(maxsize=1)
def _tensors(folder: Path | None, *, dense: bool, tokens: bool) -> tuple[Tensor, Tensor]:
    images = _images(folder, dense=dense, tokens=tokens)
    return torch.from_numpy(images.values(slice(None))), torch.from_numpy(images.labels)


@lru_cache(maxsize=4)
def _partitioned(folder: Path | None, clients: int, examples: int, *, dense: bool, tokens: bool) -> Clients:
    images = _images(folder, dense=dense, tokens=tokens)
    partition = sorted_shards(images.labels, clients=clients, per_client=examples, randomness=RANDOMNESS)
    return Clients(examples=images, partition=partition)
