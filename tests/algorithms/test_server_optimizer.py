import importlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from incrowd import _extensions
from incrowd._random import Floats
from incrowd.algorithms.fedavg import NO_CLIP, Answers, State, optimizer_of, stepped
from incrowd.errors import ConfigError
from incrowd.settings import ServerOptimizer
from incrowd.types import register


def walk(step: ServerOptimizer, means: Floats) -> Floats:
    weights, memory = np.zeros(means.shape[1]), optimizer_of(step).init(means.shape[1])
    for number, mean in enumerate(means):
        direction, memory = stepped(step, mean, memory)
        weights = weights + step.rate(number, len(means)) * direction
    return weights


MEANS = np.random.Generator(np.random.PCG64(0)).normal(size=(7, 4))


def test_sgd_adds_the_means() -> None:
    assert walk(ServerOptimizer(learning_rate=0.5), MEANS) == pytest.approx(0.5 * MEANS.sum(axis=0))


def test_momentum_is_torch_s() -> None:
    weights = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.3, momentum=0.8)
    for mean in MEANS:
        weights.grad = torch.from_numpy(-mean)
        optimizer.step()
    found = walk(ServerOptimizer(kind="momentum", learning_rate=0.3, momentum=0.8), MEANS)
    assert found == pytest.approx(weights.detach().numpy())


@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_adaptive_steps_are_the_formulas_number_by_number(kind: str) -> None:
    """Reddi et al. 2021, algorithm 2, without bias correction; Adam's second moment starts at 0."""
    step = ServerOptimizer(kind=kind, learning_rate=0.1, momentum=0.9, adaptivity=0.3)
    for column, found in enumerate(walk(step, MEANS)):
        weight = first = 0.0
        second = 0.3**2 if kind == "yogi" else 0.0
        for mean in MEANS[:, column]:
            first = 0.9 * first + 0.1 * mean
            sign = 1 if second > mean * mean else -1
            second = second - 0.01 * mean * mean * sign if kind == "yogi" else 0.99 * second + 0.01 * mean * mean
            weight += 0.1 * first / (second**0.5 + 0.3)
        assert found == pytest.approx(weight)
    other = ServerOptimizer(kind="yogi" if kind == "adam" else "adam", learning_rate=0.1, adaptivity=0.3)
    assert walk(other, MEANS) != pytest.approx(walk(step, MEANS))


class Average:
    """A third-party optimizer: the mean of all means, or a wrong one."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def init(self, size: int) -> dict[str, Floats]:
        return {"count": np.zeros(1), "total": np.zeros(size)}

    def update(self, mean: Floats, state: Mapping[str, Floats]) -> tuple[Floats, dict[str, Floats]]:
        count, total = state["count"] + 1, state["total"] + mean
        match self.fault:
            case "longer":
                return np.append(mean, 0.0), {"count": count, "total": total}
            case "renamed":
                return mean, {"count": count, "sum": total}
            case "infinite":
                return mean, {"count": count, "total": total * np.inf}
        return total / count, {"count": count, "total": total}


@pytest.mark.parametrize("fault", ["none", "longer", "renamed", "infinite"])
def test_a_registered_optimizer_steps_if_it_keeps_names_and_sizes(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extensions, "_REGISTERED", {})
    register("server_optimizers", "average", lambda _: Average(fault))
    step = ServerOptimizer(kind="average", learning_rate=2.0)
    if fault == "none":
        means = [MEANS[: number + 1].mean(axis=0) for number in range(len(MEANS))]
        assert walk(step, MEANS) == pytest.approx(2 * np.sum(means, axis=0))
        return
    with pytest.raises(ConfigError, match=r"server\.kind = 'average': return 4 finite numbers, and the arrays"):
        walk(step, MEANS)


def test_an_optimizer_is_found_in_the_entry_points_of_one_package_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_extensions, "_REGISTERED", {})
    unknown = r"server\.kind = 'plain': give one of sgd, momentum, adam, yogi, or install exactly one package"
    with pytest.raises(ConfigError, match=unknown):
        ServerOptimizer(kind="plain")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "plain_steps.py").write_text("from incrowd.algorithms.fedavg import optimizer_of\n\n\n"
        "def make(settings):\n    return optimizer_of(settings.replaced(kind='sgd'))\n")  # fmt: skip
    for package, alone in (("first", True), ("second", False)):
        about = tmp_path / f"{package}-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        (about / "entry_points.txt").write_text("[incrowd.server_optimizers]\nplain = plain_steps:make\n")
        importlib.invalidate_caches()
        _extensions._REGISTERED.clear()
        if alone:
            assert walk(ServerOptimizer(kind="plain"), MEANS) == pytest.approx(MEANS.sum(axis=0))
            continue
        with pytest.raises(ConfigError, match=unknown):
            ServerOptimizer(kind="plain")


@pytest.mark.parametrize("decay", ["none", "linear"])
def test_the_published_weights_are_the_mean_over_the_last_half_of_the_rounds(decay: str) -> None:
    step = ServerOptimizer.model_validate({"decay": decay, "average": "tail", "learning_rate": 0.7})
    state = State(weights=np.zeros(4), memory=optimizer_of(step).init(4), tail=np.zeros(4), carry=NO_CLIP)
    weights, late = np.zeros(4), []
    for number, mean in enumerate(MEANS):
        state = state.after(Answers(mean=mean, carry=NO_CLIP), server=step, rounds=7)
        weights = weights + 0.7 * (1 - number / 7 if decay == "linear" else 1) * mean
        late += [weights] if number >= 3 else []
    assert state.published == pytest.approx(np.mean(late, axis=0))
