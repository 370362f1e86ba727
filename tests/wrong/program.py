"""What the calls in calls.txt know: data, a module, and short words for what is called over and over."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import incrowd
import incrowd.data
from incrowd.data.columns import agreed

COUNT = 24


class Answers(nn.Module):
    """A module that answers with something else than a tensor, as some libraries' do."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.answer = answer

    def forward(self, x: Tensor) -> object:
        found = self.inner(x)
        if isinstance(self.answer, dict):
            return dict.fromkeys(self.answer, found)
        return (found, found) if isinstance(self.answer, tuple) else self.answer


def names() -> dict[str, Any]:
    """The names, anew for each call."""
    numbers = np.arange(COUNT)
    x, y = np.stack([numbers / COUNT, numbers % 3], axis=1), numbers % 2
    owner = np.array([f"p{number % 6}" for number in numbers])
    clients = incrowd.Clients.from_arrays(x, y, owner=owner, classes=2, name="visits", clients=6)
    private = incrowd.Private(epsilon=3, delta=1e-3, rounds=1)

    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(2, 2)

    def frozen() -> nn.Module:
        return net().requires_grad_(requires_grad=False)

    def train(module: nn.Module, *, folder: Any = "fresh", data: Any = clients, **given: Any) -> object:
        federation = incrowd.Federation(module, data, **{"privacy": private, **given})
        return federation.train(folder, progress=False)

    def unnamed(module: nn.Module) -> object:
        return train(module, data=incrowd.Clients.from_arrays(x, y, owner=owner, classes=2))

    words = np.array([["no", "yes"][number % 2] for number in numbers])
    stated = {"name": "visits", "clients": 6, "ranges": (-4, 4), "classes": ("no", "yes")}

    def fit(**given: Any) -> object:
        return incrowd.PrivateClassifier(**{"epsilon": 3.0, "delta": 1e-3, "rounds": 1, **given}).fit(x, words, owner)

    def agree(wanted: Any, own: Any, **label: Any) -> object:
        columns = (incrowd.data.Columns(client="", label="y", schema={"a": one}) for one in (wanted, own))
        wants, has = (one.resolved(()) for one in columns)
        return agreed(replace(wants, **label), has)

    def two(**given: Any) -> object:
        rows = [{"patient": f"p0{number}", "x": number, "y": number} for number in (0, 1)]
        return incrowd.Clients.from_table(rows, client="patient", label="y", classes=2, **given)

    return {**globals(), **locals()}


def place_of(path: str) -> Path:
    """Where a file is."""
    return Path(path)
