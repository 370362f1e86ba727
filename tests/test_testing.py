"""The contract suites accept every implementation of incrowd's, and catch deliberately wrong ones."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from numpy.typing import NDArray

from incrowd import Local, ServerOptimizer
from incrowd._random import Floats, Integers, KeyedStream, Stream
from incrowd.algorithms.fedavg import optimizer_of
from incrowd.learning.local_algorithms import Adam, Scaffold, Sgd
from incrowd.privacy.account.accounting import Relation, delta_at, price
from incrowd.privacy.mechanism.clipping import (
    ElementwiseClip,
    FixedClip,
    NormalisedClip,
    PerLayerClip,
    clip_rows,
)
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson
from incrowd.runs import trackers
from incrowd.settings import BUILT_IN
from incrowd.testing import (
    check_accountant,
    check_clip,
    check_data_source,
    check_feature_map,
    check_local_algorithm,
    check_sampler,
    check_server_optimizer,
    check_tracker,
)
from incrowd.types import ClientAtWork


class WrongStep:
    """A server optimizer with one fault."""

    calls = 0

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def __call__(self, _: ServerOptimizer) -> "WrongStep":
        return self

    def init(self, size: int) -> dict[str, Floats]:
        WrongStep.calls += self.fault == "draws its state"
        return {"total": np.full(size, float(WrongStep.calls))}

    def update(self, mean: Floats, state: Mapping[str, Floats]) -> tuple[Floats, Mapping[str, Floats]]:
        total = state["total"] + mean
        match self.fault:
            case "remembers":
                WrongStep.calls += 1
                return mean * WrongStep.calls, {"total": total}
            case "in place":
                mean *= 2
            case "shorter":
                return mean[1:], {"total": total}
            case "another state":
                return mean, {"total": total, "more": total}
            case "not finite":
                with np.errstate(all="ignore"):
                    return mean / np.zeros(mean.size), {"total": total}
        return mean, {"total": total}


@pytest.mark.parametrize("kind", BUILT_IN)
def test_every_server_optimizer_keeps_the_contract(kind: str) -> None:
    check_server_optimizer(lambda settings: optimizer_of(settings.replaced(kind=kind)))
    check_server_optimizer(WrongStep("none"))


@pytest.mark.parametrize(
    "fault", ["draws its state", "remembers", "in place", "shorter", "another state", "not finite"]
)
def test_wrong_server_optimizers_are_caught(fault: str) -> None:
    with pytest.raises(AssertionError):
        check_server_optimizer(WrongStep(fault))


class Claims:
    """Upper bounds: the price, times a function of the price."""

    def __init__(self, times: Callable[[float], float], deltas: float = 1.0) -> None:
        self.times, self.deltas = times, deltas

    def epsilon(self, event: DpEvent, delta: float, *, relation: Relation) -> float:
        epsilon = price(event, delta=delta, relation=relation).epsilon
        return epsilon * self.times(epsilon)

    def delta(self, event: DpEvent, epsilon: float, *, relation: Relation) -> float:
        return self.deltas * delta_at(event, epsilon=epsilon, relation=relation)


def test_our_own_prices_keep_the_contract_of_an_accountant() -> None:
    check_accountant(Claims(lambda _: 1.0))


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (Claims(lambda _: 0.0), "0 is claimed"),
        (Claims(lambda _: 0.999), "is claimed"),
        (Claims(lambda _: 1.0, 0.9), "delta at epsilon 1"),
        (Claims(lambda epsilon: 1e4 / epsilon**2), "more rounds cost less"),
    ],
)
def test_wrong_accountants_are_caught(wrong: Claims, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_accountant(wrong)


class Adapted:
    """A sampler of ours as an extension; `change` makes another one of its cohorts."""

    def __init__(self, kind: type[Any], change: Callable[..., Any] | None = None, event: DpEvent | None = None) -> None:
        self.kind, self.change, self.claimed = kind, change, event
        self.relation = kind.relation

    def _own(self, clients: int, cohort: float) -> Any:
        return self.kind(clients=clients, **({} if self.kind is Everyone else {"cohort": cohort}))

    def event(self, noise_multiplier: float, *, clients: int, cohort: float) -> DpEvent:
        return self.claimed or self._own(clients, cohort).event(noise_multiplier)

    def sample(self, stream: Stream, *, clients: int, cohort: float, round: int) -> Integers:
        found: Integers = self._own(clients, cohort).sample(stream, round=round)
        return found if self.change is None else self.change(found, round)


@pytest.mark.parametrize("kind", [Poisson, FixedSize, Everyone])
def test_every_sampler_keeps_the_contract(kind: type[Any]) -> None:
    check_sampler(Adapted(kind), cohort=40 if kind is Everyone else 8)


GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (Adapted(Poisson, lambda found, _: np.repeat(found, 2)), "twice"),
        (Adapted(Poisson, lambda found, _: found + 1), "none of 0 to 39"),
        (Adapted(Poisson, lambda found, _: found[GENERATOR.random(found.size) < 0.9]), "another cohort"),
        (Adapted(Poisson, lambda found, _: np.union1d(found, [3])), "client 3 takes part"),
        (Adapted(Poisson, lambda found, round: found if round % 2 else found[:0]), "takes part in"),
        (Adapted(Poisson, event=PoissonSampledDpEvent(0.17, GaussianDpEvent(3.0))), "event states 0.1700"),
        (Adapted(Everyone, lambda found, _: found[1:]), "client 0 takes part"),
        (Adapted(Everyone, lambda found, _: found, event=GaussianDpEvent(3.0)), "the mean cohort"),
    ],
)
def test_wrong_samplers_are_caught(wrong: Adapted, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_sampler(wrong, cohort=40 if wrong.kind is Everyone and wrong.claimed is None else 8)


def test_a_sampler_whose_rounds_depend_on_each_other_is_caught() -> None:
    """Each client has the right probability, and takes part in pairs of rounds."""

    class Pairs(Adapted):
        def sample(self, stream: Stream, *, clients: int, cohort: float, round: int) -> Integers:
            same = Poisson(clients=clients, cohort=cohort)
            return same.sample(KeyedStream((round // 2).to_bytes(32)), round=round)

    with pytest.raises(AssertionError, match="twice in a row"):
        check_sampler(Pairs(Poisson))


@pytest.mark.parametrize(
    "clip",
    [
        lambda norm: FixedClip(clip_norm=norm),
        lambda norm: NormalisedClip(clip_norm=norm),
        lambda norm: PerLayerClip(clip_norms=(norm / 2, norm / 2), parts=(2, 4)),
        lambda norm: ElementwiseClip(limit=norm / 4, size=6),
    ],
)
def test_every_clip_keeps_the_contract(clip: Callable[[float], Any]) -> None:
    check_clip(lambda rows, norm: clip_rows(clip(norm), rows).rows)


def in_place(rows: Floats, _: float) -> Floats:
    rows *= 0
    return rows


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (lambda rows, _: rows, "norm of"),
        (lambda rows, norm: FixedClip(clip_norm=1.01 * norm).clip(rows), "norm of"),
        (lambda rows, norm: FixedClip(clip_norm=norm).clip(rows - rows.mean(axis=0) * 1e-300), "other contributions"),
        (lambda rows, _: rows[:, 1:] * 0, "it returns"),
        (lambda rows, _: rows * 0 + np.nan, "not finite"),
        (in_place, "in place"),
    ],
)
def test_wrong_clips_are_caught(wrong: Callable[[Floats, float], Floats], problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_clip(wrong)


class Wards:
    """A data source with one fault."""

    def __init__(self, fault: str) -> None:
        self.fault, self.calls = fault, 0

    def __call__(self, **arguments: Any) -> dict[str, Any]:
        self.calls += 1
        x, y = np.full((arguments["rows"], 2), self.calls if self.fault == "changes" else 1.0), np.zeros(3)
        wards = {"a": (x, y), "b": (x, y)}
        match self.fault:
            case "empty":
                return {}
            case "another order":
                return dict(reversed(wards.items())) if self.calls > 1 else wards
            case "no name":
                return {"": (x, y)}
            case "more labels":
                return wards | {"c": (x[:2], y)}
            case "not finite":
                return wards | {"c": (x * np.nan, y)}
            case "another form":
                return wards | {"c": (x[:, :1], y)}
        return wards


def test_a_data_source_keeps_the_contract() -> None:
    check_data_source(Wards("none"), rows=3)


@pytest.mark.parametrize(
    "fault", ["empty", "another order", "no name", "more labels", "not finite", "another form", "changes"]
)
def test_wrong_data_sources_are_caught(fault: str) -> None:
    with pytest.raises(AssertionError):
        check_data_source(Wards(fault), rows=3)


class Faulty(Scaffold):
    """A local algorithm with one fault."""

    calls = 0

    def __init__(self, local: Local, fault: str) -> None:
        super().__init__(local)
        self.fault = fault

    def sends(self, size: int) -> int:
        return size - 1 if self.fault == "sends some" else size

    def train(self, client: ClientAtWork, shared: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        changes = super().train(client, shared)
        match self.fault:
            case "remembers":
                Faulty.calls += 1
            case "moves the start":
                client.starts[0].add_(1)
            case "moves what is shared":
                shared[0].mul_(0.5)
            case "returns less":
                return changes[1:]
            case "not finite":
                return [torch.full_like(one, torch.nan) for one in changes]
            case "stays":
                with torch.no_grad():
                    torch._foreach_copy_(list(client.parameters), list(client.starts))
                return [torch.zeros_like(one) for one in changes]
            case "every parameter has a gradient":
                client.parameters[-1].data -= client.gradients(next(client.batches()))[-1]  # type: ignore[arg-type]  # it is None
        return changes


@pytest.mark.parametrize("make", [Sgd, Adam, Scaffold, lambda local: Faulty(local, "none")])
def test_every_local_algorithm_keeps_the_contract(make: Callable[[Local], Any]) -> None:
    check_local_algorithm(make)


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("remembers", "it remembers"),
        ("moves the start", "leave starts and shared as they are"),
        ("moves what is shared", "leave starts and shared as they are"),
        ("returns less", "return 9 further values"),
        ("sends some", "send 0 or 9 values"),
        ("not finite", "not finite"),
        ("stays", "no client moves"),
        ("every parameter has a gradient", "TypeError"),
    ],
)
def test_wrong_local_algorithms_are_caught(fault: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_local_algorithm(lambda local: Faulty(local, fault))


class Shifted:
    """A feature map with one fault."""

    def __init__(self, fault: str) -> None:
        self.fault, self.calls = fault, 0

    @property
    def name(self) -> str:
        return "" if self.fault == "no name" else f"shifted {self.calls if self.fault == 'another name' else ''}"

    def __call__(self, values: NDArray[np.float32]) -> Any:
        if self.fault in ("counts", "another name"):
            self.calls += 1
        match self.fault:
            case "looks around":
                return values - values.mean(axis=0)
            case "in place":
                values += 1
            case "not finite":
                return values * np.nan
            case "less":
                return values[1:]
            case "draws":
                return values + GENERATOR.random()
        return values + 1


PICTURES = np.random.default_rng(0).random((40, 12, 12), np.float32)


def test_a_feature_map_keeps_the_contract() -> None:
    """The built-in ones do, too: see tests/learning/test_features.py."""
    check_feature_map(Shifted("none"), PICTURES[0])


@pytest.mark.parametrize(
    "fault", ["no name", "another name", "counts", "looks around", "in place", "not finite", "less", "draws"]
)
def test_wrong_feature_maps_are_caught(fault: str) -> None:
    with pytest.raises(AssertionError):
        check_feature_map(Shifted(fault), PICTURES[0])


class Listener:
    """A tracker with one fault."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def start(self, settings: Any, past: Any) -> None:
        if self.fault == "past":
            past.clear()
        if self.fault == "settings":
            settings["config"]["run"].clear()

    def round(self, record: Any) -> None:
        if self.fault == "unmeasured":
            f"{record.loss:.2f}"

    def end(self, summary: Any) -> None:
        if self.fault == "stopped":
            summary["accuracy"]


@pytest.mark.parametrize("make", [trackers.BUILT_IN["csv"], trackers.BUILT_IN["jsonl"], lambda _: Listener("none")])
def test_every_tracker_keeps_the_contract(make: Callable[[Path], Any]) -> None:
    check_tracker(make)


@pytest.mark.parametrize("fault", ["past", "settings", "unmeasured", "stopped"])
def test_wrong_trackers_are_caught(fault: str) -> None:
    with pytest.raises(AssertionError):
        check_tracker(lambda _: Listener(fault))
