"""Modules as people have them, with made-up examples: tokens, several inputs, frozen parts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from incrowd.data.examples import IGNORED, each
from incrowd.learning import ABSOLUTE, CROSS_ENTROPY, HUBER, LOGISTIC, SQUARED, ClientTensors, Loss, Model, as_loss
from incrowd.learning.dpsgd.engine import Records

WORDS, LENGTH, WIDTH, CLASSES = 11, 6, 8, 3


class Recurrent(nn.Module):
    """An embedding and a recurrent layer; the last state is classified, or every one."""

    def __init__(self, kind: type[nn.GRU | nn.LSTM], *, every: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.recurrent = kind(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.every = every

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embedding(tokens))
        outputs: Tensor = self.head(states if self.every else states[:, -1])
        return outputs


class Transformer(nn.Module):
    """One encoder layer of torch's, over tokens and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        states = self.encoder(self.embedding(tokens), src_key_padding_mask=mask)
        outputs: Tensor = self.head(states.mean(1))
        return outputs


class Attention(nn.Module):
    """Attention with layers of its own, as pretrained models have it, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        weights = torch.softmax(self.query(x) @ self.key(x).transpose(1, 2) / WIDTH**0.5, -1)
        x = self.norm(x + self.dropout(weights @ self.value(x)))
        outputs: Tensor = self.head(x.mean(1))
        return outputs


class Pair(nn.Module):
    """An image and a row of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(1, 3, 3)
        self.table = nn.Linear(4, 5)
        self.head = nn.Linear(3 * 16 + 5, CLASSES)

    def forward(self, image: Tensor, table: Tensor) -> Tensor:
        seen = torch.relu(self.image(image)).flatten(1)
        outputs: Tensor = self.head(torch.cat([seen, torch.tanh(self.table(table))], 1))
        return outputs


def tied() -> nn.Module:
    """A Sequential whose first and last layers share a weight."""
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES))
    module[2].weight = module[0].weight
    return module


def frozen() -> nn.Module:
    """A frozen body with batch normalisation and dropout in front of a head."""
    body = nn.Sequential(nn.Linear(WIDTH, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Dropout(0.5))
    with torch.no_grad():
        body[1].running_mean.add_(0.1)  # type: ignore[operator]  # a Sequential says no types
    return nn.Sequential(body.requires_grad_(False), nn.Linear(9, CLASSES))


def tuned() -> nn.Module:
    """Frozen attention of which the queries and the head are trained."""
    module = Attention().eval().requires_grad_(requires_grad=False)
    for name in ("query", "head"):
        module.get_submodule(name).requires_grad_(requires_grad=True)
    return module


Drawn = Callable[[np.random.Generator, int], Any]


def _tokens(generator: np.random.Generator, count: int) -> Tensor:
    return torch.from_numpy(generator.integers(0, WORDS, (count, LENGTH)))


def _floats(*shape: int) -> Drawn:
    return lambda generator, count: torch.from_numpy(generator.normal(size=(count, *shape)).astype(np.float32))


def _masked(generator: np.random.Generator, count: int) -> dict[str, Tensor]:
    lengths = generator.integers(1, LENGTH + 1, count)
    return {"tokens": _tokens(generator, count), "mask": torch.from_numpy(np.arange(LENGTH) >= lengths[:, None])}


def _pairs(generator: np.random.Generator, count: int) -> tuple[Tensor, Tensor]:
    image = torch.from_numpy(generator.integers(0, 256, (count, 1, 6, 6)).astype(np.uint8))
    return image, _floats(4)(generator, count)


def _classes(generator: np.random.Generator, count: int) -> Tensor:
    return torch.from_numpy(generator.integers(0, CLASSES, count))


def _marks(generator: np.random.Generator, count: int) -> Tensor:
    return torch.from_numpy(generator.integers(0, 2, (count, CLASSES)).astype(np.float32))


def _sequences(generator: np.random.Generator, count: int) -> Tensor:
    labels = generator.integers(0, CLASSES, (count, LENGTH))
    labels[generator.random((count, LENGTH)) < 0.3] = IGNORED
    return torch.from_numpy(labels)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A module, and examples for it."""

    module: Callable[[], nn.Module]
    features: Drawn
    labels: Drawn = _classes
    loss: Loss = CROSS_ENTROPY
    scale: float = 1.0

    def model(self) -> Model:
        """The model, the same every time."""
        with torch.random.fork_rng():
            torch.manual_seed(5)
            return Model(self.module())

    def clients(self, sizes: Sequence[int], seeds: Sequence[int] | None = None) -> ClientTensors:
        """Clients of these sizes; what client k holds follows from its size and seed alone."""
        parts = []
        for client, size in enumerate(sizes):
            generator = np.random.default_rng([client, size, 0 if seeds is None else seeds[client]])
            parts.append((self.features(generator, size), self.labels(generator, size)))
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return ClientTensors(
            features=_joined([features for features, _ in parts]),
            labels=torch.cat([labels for _, labels in parts]),
            offsets=offsets,
            indices=np.arange(offsets[-1], dtype=np.int32),
            scale=self.scale,
        )

    def records(self, count: int) -> Records:
        """The records of one silo."""
        return Records.of(self.clients([count]), 0)


def _joined(several: Sequence[Any]) -> Any:
    if isinstance(several[0], dict):
        return {name: torch.cat([one[name] for one in several]) for name in several[0]}
    if isinstance(several[0], tuple):
        return tuple(torch.cat(places) for places in zip(*several, strict=True))
    return torch.cat(list(several))


def zeros_like(inputs: Any) -> Any:
    """The same inputs with nothing in them."""
    return each(torch.zeros_like, inputs)


CASES: dict[str, Case] = {
    "GRU on tokens": Case(module=lambda: Recurrent(nn.GRU), features=_tokens),
    "LSTM on tokens": Case(module=lambda: Recurrent(nn.LSTM), features=_tokens),
    "labels of a sequence": Case(module=lambda: Recurrent(nn.GRU, every=True), features=_tokens, labels=_sequences),
    "transformer, inputs by name": Case(module=Transformer, features=_masked),
    "inputs in order": Case(module=Pair, features=_pairs, scale=1 / 255),
    "several labels": Case(
        module=lambda: nn.Sequential(nn.Linear(WIDTH, 5), nn.ReLU(), nn.Linear(5, CLASSES)),
        features=_floats(WIDTH), labels=_marks, loss=LOGISTIC,
    ),
    "several targets": Case(
        module=lambda: nn.Linear(WIDTH, 2), features=_floats(WIDTH), labels=_floats(2), loss=SQUARED
    ),
    "absolute": Case(module=lambda: nn.Linear(WIDTH, 1), features=_floats(WIDTH), labels=_floats(), loss=ABSOLUTE),
    "huber": Case(module=lambda: nn.Linear(WIDTH, 1), features=_floats(WIDTH), labels=_floats(), loss=HUBER),
    "torch's loss": Case(
        module=lambda: nn.Linear(WIDTH, 1), features=_floats(WIDTH), labels=_floats(), loss=as_loss(nn.MSELoss())
    ),
    "dropout": Case(
        module=lambda: nn.Sequential(nn.Linear(WIDTH, 9), nn.Dropout(0.4), nn.Tanh(), nn.Linear(9, CLASSES)),
        features=_floats(WIDTH),
    ),
    "tied": Case(module=tied, features=_floats(WIDTH)),
    "frozen body": Case(module=frozen, features=_floats(WIDTH)),
    "tuned": Case(module=tuned, features=_tokens),
}  # fmt: skip
