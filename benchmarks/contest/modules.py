"""Modules of a work that are no perceptron: as a torch user would write them down."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

TOKENS, LENGTH = 64, 20


class PlainCNN(nn.Module):
    """The small CNN in the order in which everyone writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 5)
        self.hidden, self.output = nn.Linear(1024, 128), nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Convolve, rectify, pool; twice; then two dense layers."""
        x = torch.max_pool2d(torch.relu(self.conv1(images.unsqueeze(1))), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        outputs: Tensor = self.output(torch.relu(self.hidden(x.flatten(1))))
        return outputs


class TokenTransformer(nn.Module):
    """One encoder layer over tokens; the last place is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 64)
        self.encoder = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.output = nn.Linear(64, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """The outputs."""
        outputs: Tensor = self.output(self.encoder(self.embedding(tokens))[:, -1])
        return outputs


class TokenRecurrent(nn.Module):
    """A recurrent layer over tokens; its last state is classified."""

    def __init__(self, kind: type[nn.GRU | nn.LSTM]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 32)
        self.recurrent = kind(32, 64, batch_first=True)
        self.output = nn.Linear(64, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """The outputs."""
        outputs: Tensor = self.output(self.recurrent(self.embedding(tokens))[0][:, -1])
        return outputs


def group_norm_cnn() -> nn.Module:
    """Two convolutions, the first normalised by groups of its channels."""
    first = nn.Unflatten(1, (1, 28)), nn.Conv2d(1, 16, 5), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*first, nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "cnn-gn": group_norm_cnn,
    "transformer": TokenTransformer,
    "gru": partial(TokenRecurrent, nn.GRU),
    "lstm": partial(TokenRecurrent, nn.LSTM),
}
"""Networks by the name of their work."""
