"""Models and records for DP-SGD, a few for each way to compute gradients, and helpers that look at sums."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from incrowd._random import SeededRandomness
from incrowd.learning import CROSS_ENTROPY, LOGISTIC, POISSON, SQUARED, Loss, Model, linear, mlp, small_cnn
from incrowd.learning.dpsgd.engine import Records
from incrowd.learning.dpsgd.ghost import ConvolutionGradients, GhostClipping
from incrowd.learning.dpsgd.gradients import PerExampleGradients, RecordGradients, VectorizedGradients
from incrowd.privacy.mechanism.grid import RecordTraining

FEATURES = 12
RANDOMNESS = SeededRandomness(seed=9)
EITHER = (VectorizedGradients, PerExampleGradients)
"""Where numbers of several records meet in a register, a processor may round by place."""

Case = tuple[Callable[[], Model], Loss, Records, tuple[type, ...]]
"""A model, its loss, records, and the classes that may compute its gradients."""


def training(**changes: float) -> RecordTraining:
    settings = {"steps": 3, "sampling_prob": 0.25, "expected_batch": 8.0, "clip_norm": 1.0, "noise_multiplier": 1.5}
    return RecordTraining(**{**settings, **changes})  # type: ignore[arg-type]  # whole numbers and others in one place


def start(model: Model) -> Tensor:
    return model.initial(RANDOMNESS)


def nothing(total: Tensor) -> Tensor:
    """Noise of zeros."""
    return total


def tilted(total: Tensor) -> Tensor:
    """The same noise at each step: any mistake in how noise enters shows."""
    return total + torch.linspace(-1, 1, len(total), dtype=torch.float64)


class Seen:
    """Noise of zeros that remembers the sums."""

    def __init__(self) -> None:
        self.totals: list[Tensor] = []

    def __call__(self, total: Tensor) -> Tensor:
        self.totals.append(total.clone())
        return total


def one_of(gradients: RecordGradients, records: Records, batch: Sequence[int], one: int) -> tuple[float, Tensor]:
    """The norm of a record's gradient, and the sum of a batch in which all others are left out."""
    norm = 0.0
    gradients.begin(len(batch))
    for begin in range(0, len(batch), gradients.rows):
        rows = torch.tensor(batch[begin : begin + gradients.rows])
        norms = gradients.norms(*records.take(rows))
        gradients.add((rows == one).double())
        norm += float(norms[rows == one].sum())
    return norm, gradients.total.clone()


def spoilt(records: Records, *bad: float) -> Records:
    """The records with a bad number in the third, the fourth and so on."""
    features = torch.as_tensor(records.features).clone()
    for number, value in enumerate(bad):
        features.view(len(features), -1)[2 + number, number] = value
    return replace(records, features=features)


def without(records: Records, first: int, last: int) -> Records:
    """The records but for some."""
    rows = torch.cat([torch.arange(first), torch.arange(last, len(records))])
    return replace(records, features=torch.as_tensor(records.features)[rows], labels=records.labels[rows])


def rows(count: int = 90, *, classes: int = 4, shape: tuple[int, ...] = (FEATURES,), whole: bool = False) -> Records:
    generator = np.random.default_rng(3)
    labels = torch.from_numpy(generator.integers(0, classes, count))
    if whole:
        features = torch.from_numpy(generator.integers(0, 256, (count, *shape), dtype=np.uint8))
        return Records(features=features, labels=labels, scale=1 / 255, offset=-0.25)
    return Records(features=torch.from_numpy(generator.normal(size=(count, *shape)).astype(np.float32)), labels=labels)


def tokens(count: int = 40) -> Records:
    generator = np.random.default_rng(4)
    features = torch.from_numpy(generator.integers(0, 5, (count, 6)))
    return Records(features=features, labels=torch.from_numpy(generator.integers(0, 4, count)))


def layers(*several: nn.Module) -> Model:
    return Model(nn.Sequential(*several), fresh=True)


class Sharing(nn.Module):
    """Two layers with a path around the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 8), nn.Linear(8, 8, bias=False)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        out: Tensor = self.last(h + torch.relu(self.second(h)))
        return out


class Branching(nn.Module):
    """What is computed of a record depends on it in a way that only Python knows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out if bool(x.abs().sum() >= 0) else -out


class Recurrent(nn.Module):
    """A layer over tokens, whose last state is classified."""

    def __init__(self, kind: type[nn.GRU | nn.LSTM | nn.RNN], *, inputs: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, inputs)
        self.recurrent = kind(inputs, hidden, batch_first=True)
        self.output = nn.Linear(hidden, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(self.recurrent(self.embedding(x))[0][:, -1])
        return out


def narrow_convolutions() -> Model:
    """Margins, a stride, biases and none, and two Linear layers."""
    return layers(
        *(nn.Conv2d(2, 5, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(5, 6, 2, stride=2, padding=1), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(54, 7), nn.Tanh(), nn.Linear(7, 4)),
    )


def attention(width: int, outputs: int) -> Model:
    encoder = nn.TransformerEncoderLayer(width, 2, width, dropout=0.0, batch_first=True)
    return layers(nn.Embedding(5, width), encoder, nn.Flatten(), nn.Linear(6 * width, outputs))


def _recurrent(kind: type[nn.GRU | nn.LSTM | nn.RNN], inputs: int, hidden: int) -> Callable[[], Model]:
    return lambda: Model(Recurrent(kind, inputs=inputs, hidden=hidden), fresh=True)


GHOST, CONVOLUTIONS = (GhostClipping,), (ConvolutionGradients,)
SMOOTHED = Loss(name="smoothed", value=partial(nn.functional.cross_entropy, label_smoothing=0.1))
PICTURES = rows(40, shape=(2, 9, 8))
KINDS: dict[str, Case] = {
    "linear": (lambda: linear(FEATURES, 4), CROSS_ENTROPY, rows(), GHOST),
    "perceptron": (lambda: mlp((FEATURES, 70, 9, 4)), CROSS_ENTROPY, rows(), GHOST),
    "without biases": (lambda: mlp((FEATURES, 7, 4), bias=False), CROSS_ENTROPY, rows(), GHOST),
    "images": (lambda: mlp((FEATURES, 9, 4)), CROSS_ENTROPY, rows(shape=(3, 4), whole=True), GHOST),
    "logistic": (lambda: linear(FEATURES, 1), LOGISTIC, rows(classes=2), GHOST),
    "least squares": (lambda: linear(FEATURES, 1, bias=False), SQUARED, rows(), GHOST),
    "counts": (lambda: linear(FEATURES, 1), POISSON, rows(), GHOST),
    "hyperbolic": (
        lambda: layers(
            *(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, 5), nn.Linear(5, 5), nn.Sigmoid(), nn.Linear(5, 4))
        ),
        CROSS_ENTROPY,
        rows(),
        GHOST,
    ),
    "normalised": (
        lambda: layers(nn.Linear(FEATURES, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 4)),
        CROSS_ENTROPY,
        rows(),
        EITHER,
    ),
    "shared path": (lambda: Model(Sharing(), fresh=True), CROSS_ENTROPY, rows(), EITHER),
    "a loss of one's own": (lambda: mlp((FEATURES, 5, 4)), SMOOTHED, rows(), EITHER),
    "branching": (lambda: Model(Branching(), fresh=True), CROSS_ENTROPY, rows(), (PerExampleGradients,)),
    "convolutions": (
        lambda: small_cnn(side=16, outputs=4), CROSS_ENTROPY, rows(12, shape=(16, 16), whole=True), CONVOLUTIONS
    ),
    "narrow convolutions": (narrow_convolutions, CROSS_ENTROPY, PICTURES, CONVOLUTIONS),
    "normalised convolutions": (
        lambda: layers(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(168, 4)),
        CROSS_ENTROPY,
        PICTURES,
        EITHER,
    ),
    "recurrent": (_recurrent(nn.GRU, 6, 7), CROSS_ENTROPY, tokens(), EITHER),
    "gated, of whole registers": (_recurrent(nn.GRU, 16, 32), CROSS_ENTROPY, tokens(), (VectorizedGradients,)),
    "long short, of whole registers": (_recurrent(nn.LSTM, 16, 32), CROSS_ENTROPY, tokens(), (VectorizedGradients,)),
    "attention": (lambda: attention(8, 4), CROSS_ENTROPY, tokens(), EITHER),
    "attention of whole registers": (lambda: attention(32, 16), CROSS_ENTROPY, tokens(), (VectorizedGradients,)),
}  # fmt: skip
