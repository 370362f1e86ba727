"""The contract suites accept every implementation of incrowd's, and catch deliberately wrong ones."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
from incrowd.privacy.mechanism.clipping import ElementwiseClip, FixedClip, NormalisedClip, PerLayerClip, clip_rows
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


class Claims:
    """Upper bounds: the price, times a function of the price."""

    def __init__(self, times: Callable[[float], float], deltas: float = 1.0) -> None:
        self.times, self.deltas = times, deltas

    def epsilon(self, event: DpEvent, delta: float, *, relation: Relation) -> float:
        epsilon = price(event, delta=delta, relation=relation).epsilon
        return epsilon * self.times(epsilon)

    def delta(self, event: DpEvent, epsilon: float, *, relation: Relation) -> float:
        return self.deltas * delta_at(event, epsilon=epsilon, relation=relation)


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


GENERATOR = np.random.default_rng(0)


def in_place(rows: Floats, _: float) -> Floats:
    rows *= 0
    return rows


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


PICTURE = np.random.default_rng(0).random((12, 12), np.float32)


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


class Pairs(Adapted):
    """Each client has the right probability, and takes part in pairs of rounds."""

    def sample(self, stream: Stream, *, clients: int, cohort: float, round: int) -> Integers:
        same = Poisson(clients=clients, cohort=cohort)
        return same.sample(KeyedStream((round // 2).to_bytes(32)), round=round)


def thinned(found: Integers, _: int) -> Integers:
    return found[GENERATOR.random(found.size) < 0.9]


Made = Callable[..., Any]
CLIPS: list[Made] = [
    lambda norm: FixedClip(clip_norm=norm),
    lambda norm: NormalisedClip(clip_norm=norm),
    lambda norm: PerLayerClip(clip_norms=(norm / 2, norm / 2), parts=(2, 4)),
    lambda norm: ElementwiseClip(limit=norm / 4, size=6),
]
RIGHT: list[tuple[Made, list[Any]]] = [
    (
        check_server_optimizer,
        [lambda settings, kind=kind: optimizer_of(settings.replaced(kind=kind)) for kind in BUILT_IN]
        + [WrongStep("none")],
    ),
    (check_accountant, [Claims(lambda _: 1.0)]),
    (check_sampler, [Adapted(Poisson), Adapted(FixedSize)]),
    (partial(check_sampler, cohort=40), [Adapted(Everyone)]),
    (check_clip, [lambda rows, norm, clip=clip: clip_rows(clip(norm), rows).rows for clip in CLIPS]),
    (partial(check_data_source, rows=3), [Wards("none")]),
    (check_local_algorithm, [Sgd, Adam, Scaffold, lambda local: Faulty(local, "none")]),
    (partial(check_feature_map, examples=PICTURE), [Shifted("none")]),  # ours, too: tests/learning/test_features.py
    (check_tracker, [trackers.BUILT_IN["csv"], trackers.BUILT_IN["jsonl"], lambda _: Listener("none")]),
]


@pytest.mark.parametrize(("check", "extension"), [(check, one) for check, some in RIGHT for one in some])
def test_every_extension_of_ours_keeps_its_contract(check: Made, extension: Any) -> None:
    check(extension)


def faulty(make: Made, *faults: str) -> list[tuple[Any, str]]:
    return [(make(fault), "") for fault in faults]


WRONG: list[tuple[Made, list[tuple[Any, str]]]] = [
    (
        check_server_optimizer,
        faulty(WrongStep, "draws its state", "remembers", "in place", "shorter", "another state", "not finite"),
    ),
    (
        check_accountant,
        [
            (Claims(lambda _: 0.0), "0 is claimed"),
            (Claims(lambda _: 0.999), "is claimed"),
            (Claims(lambda _: 1.0, 0.9), "delta at epsilon 1"),
            (Claims(lambda epsilon: 1e4 / epsilon**2), "more rounds cost less"),
        ],
    ),
    (
        check_sampler,
        [
            (Adapted(Poisson, lambda found, _: np.repeat(found, 2)), "twice"),
            (Adapted(Poisson, lambda found, _: found + 1), "none of 0 to 39"),
            (Adapted(Poisson, thinned), "another cohort"),
            (Adapted(Poisson, lambda found, _: np.union1d(found, [3])), "client 3 takes part"),
            (Adapted(Poisson, lambda found, round: found if round % 2 else found[:0]), "takes part in"),
            (Adapted(Poisson, event=PoissonSampledDpEvent(0.17, GaussianDpEvent(3.0))), "event states 0.1700"),
            (Adapted(Everyone, lambda found, _: found, event=GaussianDpEvent(3.0)), "the mean cohort"),
            (Pairs(Poisson), "twice in a row"),
        ],
    ),
    (partial(check_sampler, cohort=40), [(Adapted(Everyone, lambda found, _: found[1:]), "client 0 takes part")]),
    (
        check_clip,
        [
            (lambda rows, _: rows, "norm of"),
            (lambda rows, norm: FixedClip(clip_norm=1.01 * norm).clip(rows), "norm of"),
            (lambda rows, norm: FixedClip(clip_norm=norm).clip(rows - rows.mean(axis=0) * 1e-300), "other contrib"),
            (lambda rows, _: rows[:, 1:] * 0, "it returns"),
            (lambda rows, _: rows * 0 + np.nan, "not finite"),
            (in_place, "in place"),
        ],
    ),
    (
        partial(check_data_source, rows=3),
        faulty(Wards, "empty", "another order", "no name", "more labels", "not finite", "another form", "changes"),
    ),
    (
        check_local_algorithm,
        [
            (lambda local, fault=fault: Faulty(local, fault), problem)
            for fault, problem in {
                "remembers": "it remembers",
                "moves the start": "leave starts and shared as they are",
                "moves what is shared": "leave starts and shared as they are",
                "returns less": "return 9 further values",
                "sends some": "send 0 or 9 values",
                "not finite": "not finite",
                "stays": "no client moves",
                "every parameter has a gradient": "TypeError",
            }.items()
        ],
    ),
    (
        partial(check_feature_map, examples=PICTURE),
        faulty(Shifted, "no name", "another name", "counts", "looks around", "in place", "not finite", "less", "draws"),
    ),
    (
        check_tracker,
        [(lambda _, fault=fault: Listener(fault), "") for fault in ("past", "settings", "unmeasured", "stopped")],
    ),
]


@pytest.mark.parametrize(("check", "extension", "problem"), [(check, *one) for check, some in WRONG for one in some])
def test_a_wrong_one_is_caught(check: Made, extension: Any, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem or None):
        check(extension)
