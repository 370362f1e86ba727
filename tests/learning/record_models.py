"""Models that are trained on records, one for each way that there is."""

import torch
from torch import Tensor, nn

from incrowd.learning import Model

FEATURES = 12


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

    def __init__(self, kind: type[nn.GRU | nn.LSTM | nn.RNN] = nn.GRU, *, inputs: int = 6, hidden: int = 7) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, inputs)
        self.recurrent = kind(inputs, hidden, batch_first=True)
        self.output = nn.Linear(hidden, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(self.recurrent(self.embedding(x))[0][:, -1])
        return out


def narrow_convolutions() -> Model:
    """One by windows and one by taps, margins, a stride, biases and none, and two dense layers."""
    return layers(
        nn.Conv2d(2, 5, 3, padding=1, bias=False),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(5, 6, 2, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(54, 7),
        nn.Tanh(),
        nn.Linear(7, 4),
    )


def attention(width: int, outputs: int) -> Model:
    encoder = nn.TransformerEncoderLayer(width, 2, width, dropout=0.0, batch_first=True)
    return layers(nn.Embedding(5, width), encoder, nn.Flatten(), nn.Linear(6 * width, outputs))
