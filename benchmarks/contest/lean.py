"""A lean loop in plain torch: what a careful user writes who knows what is slow."""

import time

import numpy as np
import torch
from torch import Tensor, nn

from contest.works import CLIP_NORM, LEARNING_RATE, NOISE_MULTIPLIER, Task
from harness.arrays import Floats


class Trainer:
    """Local training: one module that is used again, images as floats in one tensor, no data loader, no copies."""

    def __init__(self, task: Task) -> None:
        self.batch_size = task.batch_size
        self.features, self.labels = task.tensors
        self.module = task.work.module().to(task.device)
        self.parameters = list(trainable(self.module).values())
        self.optimizer = torch.optim.SGD(self.parameters, lr=LEARNING_RATE)

    def train(self, start: list[Tensor], rows: Tensor) -> None:
        """One pass over these examples in this order; the module then has what was learnt."""
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, start)
        x, y = self.features[rows], self.labels[rows]
        for begin in range(0, len(rows), self.batch_size):
            batch = slice(begin, begin + self.batch_size)
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.module(x[batch]), y[batch])
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not say its types
            self.optimizer.step()


class Lean:
    """The loop with clipping, a sum and one Gaussian vector a round. Its batches are drawn before the clock starts."""

    name, threads = "lean", 1

    def __init__(self, task: Task) -> None:
        self.task = task
        self.trainer = Trainer(task)
        self.weights = parts(task.start, self.trainer.parameters)

    def update(self) -> Floats:
        """The sum of the clipped contributions to the first weights in round 0, without noise."""
        total = self._clipped_sum(parts(self.task.start, self.weights), self._rows(0))
        return flat(total)

    def round(self, number: int) -> float:
        """Take the weights through a round; its seconds."""
        rows = self._rows(number)
        begin = time.perf_counter()
        total = self._clipped_sum(self.weights, rows)
        for weight, change in zip(self.weights, total, strict=True):
            noise = torch.randn_like(change).mul_(NOISE_MULTIPLIER * CLIP_NORM)
            weight.add_(change.add_(noise), alpha=1 / self.task.work.cohort)
        settle(self.task.device)
        return time.perf_counter() - begin

    def close(self) -> None:
        """There is nothing to close."""

    def _rows(self, number: int) -> list[Tensor]:
        return [self.task.rows(client, round=number) for client in range(self.task.work.cohort)]

    def _clipped_sum(self, start: list[Tensor], rows: list[Tensor]) -> list[Tensor]:
        total = [torch.zeros_like(weight) for weight in start]
        for own in rows:
            self.trainer.train(start, own)
            with torch.no_grad():
                change = torch._foreach_sub(self.trainer.parameters, start)
                norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(change))))
                torch._foreach_add_(total, change, alpha=min(1.0, CLIP_NORM / norm))
        return total


def trainable(module: nn.Module) -> dict[str, Tensor]:
    """The parameters that are learnt, by their names: what is frozen is everybody's already, and is not sent."""
    return {name: one for name, one in module.named_parameters() if one.requires_grad}


def settle(device: str) -> None:
    """Wait until an accelerator has done all that it was told."""
    if torch.device(device).type == "cuda":  # pragma: no cover - where there is one
        torch.cuda.synchronize(device)


def parts(weights: Tensor, like: list[Tensor]) -> list[Tensor]:
    """One vector as tensors of these shapes, copies, where these are."""
    places = weights.split_with_sizes([one.numel() for one in like])
    return [place.view(one.shape).to(one.device, copy=True) for place, one in zip(places, like, strict=True)]


def flat(tensors: list[Tensor]) -> Floats:
    """Tensors as one vector."""
    return np.concatenate([one.detach().cpu().numpy().ravel() for one in tensors]).astype(np.float64)
