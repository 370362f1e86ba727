"""Pipelines that are broken on purpose: each changes a function of the product for as long as a `with` block lasts.

These are the bugs that published software has had, or nearly had. None of them is refused by what they break.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent

from incrowd._random import Floats, Integers, SeededRandomness, Stream, SystemStream
from incrowd.learning.contributions import Contributions, Total
from incrowd.learning.engine import CohortEngine
from incrowd.learning.mean_query import VectorCohort, VectorRows
from incrowd.privacy.ledger import ledger as ledgers
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism import clipped_sum, clipping, grid
from incrowd.privacy.mechanism.clipped_sum import ClippedSum
from incrowd.privacy.mechanism.clipping import Clip, Clipped, FixedClip, PerLayerClip, QuantileClip
from incrowd.privacy.mechanism.correlated import CorrelatedNoise
from incrowd.privacy.mechanism.grid import GaussianNoise, Whole
from incrowd.privacy.paid import RoundNoise
from incrowd.privacy.plan import plan as plans
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.sampling import FixedSize, Poisson
from incrowd.privacy.release import PrivateRound, PrivateRun

LAYERS = (60, 20)
"""The layers of the plans that have some."""

Breakage = Callable[[], AbstractContextManager[None]]


def changed(owner: Any, name: str, make: Callable[[Any], Any]) -> Breakage:
    """Something of the product, replaced by what is made of it."""

    @contextmanager
    def breakage() -> Iterator[None]:
        own, before = name in vars(owner), inspect.getattr_static(owner, name)
        setattr(owner, name, make(before))
        try:
            yield
        finally:
            setattr(owner, name, before) if own else delattr(owner, name)

    return breakage


def instead(owner: Any, name: str, other: Any) -> Breakage:
    """Something else in the place of a function."""
    return changed(owner, name, lambda real: other)


def after(owner: Any, name: str, change: Callable[[Any], Any]) -> Breakage:
    """What a function returns, changed."""

    def make(real: Any) -> Any:
        if isinstance(real, classmethod):
            inner: Any = real.__func__
            return classmethod(lambda cls, *given, **named: change(inner(cls, *given, **named)))
        return lambda *given, **named: change(real(*given, **named))

    return changed(owner, name, make)


def both(*breakages: Breakage) -> Breakage:
    """Several breakages at once."""

    @contextmanager
    def breakage() -> Iterator[None]:
        with ExitStack() as stack:
            for one in breakages:
                stack.enter_context(one())
            yield

    return breakage


ledger_believes = instead(ledgers, "check_paid", lambda *given, **named: None)
"""The ledger takes any event for any noise, so that the checks of the audit have to see what is wrong."""


def noise_is(factor: float) -> Breakage:
    """Noise of another size than what was charged."""
    return after(GaussianNoise, "scale", lambda scale: factor * scale)


def per_layer(*factors: float) -> Breakage:
    """Noise times a factor a layer, where there are layers."""

    def scaled(drawn: Integers) -> Integers:
        return (drawn * np.repeat(factors, LAYERS)).astype(np.int64) if len(drawn) == sum(LAYERS) else drawn

    return after(grid, "sample_noise", scaled)


def noise_from(name: Callable[[Receipt, str, tuple[int, ...]], Stream]) -> Breakage:
    """Noise that comes from another stream than its own."""

    def make(real: Callable[..., Stream]) -> Callable[..., Stream]:
        def stream(self: Receipt, noise: object, purpose: str, *indices: int) -> Stream:
            real(self, noise, purpose, *indices)
            return name(self, purpose, indices)

        return stream

    return changed(Receipt, "noise_stream", make)


clip_inverted = instead(
    clipping, "_down_to", lambda bound, norms: np.where(norms >= bound, 1.0, bound / np.maximum(norms, 1e-300))
)
clip_twice = instead(FixedClip, "factors", lambda self, norms: clipping._down_to(2 * self.clip_norm, norms))
clip_off_for_one_layer = after(
    PerLayerClip, "factors", lambda factors: np.hstack([factors[:, :-1], np.ones((len(factors), 1))])
)


def not_a_number_passes(real: Callable[..., Clipped]) -> Callable[..., Clipped]:
    """What is not finite is no longer than any bound: its comparison is false."""

    def clip_rows(clip: Clip, rows: Floats) -> Clipped:
        rows = np.atleast_2d(np.asarray(rows, np.float64))
        given = real(clip, rows)
        odd = ~np.isfinite(rows).all(axis=1)
        finite = np.nan_to_num(rows[odd], nan=0.0, posinf=0.0, neginf=0.0)
        given.rows[odd] = np.where(np.abs(finite) < 10, finite * 10, finite)
        return given

    return clip_rows


training_in_company = after(
    CohortEngine,
    "train",
    lambda chunks: (
        Contributions(one.clients, torch.from_numpy(one.rows()) * (1 + 2.0**-20 * len(one.clients))) for one in chunks
    ),
)
query_in_company = after(
    VectorCohort,
    "chunks",
    lambda chunks: (VectorRows(one.clients, one.contributions + len(one.clients)) for one in chunks),
)
engine_adds_twice = after(Total, "flat", lambda total: 2 * total)


def _longer(real: Callable[..., Any]) -> Callable[..., Any]:
    def train_and_sum(self: CohortEngine, weights: Any, clients: Any, how: Any, **given: Any) -> Any:
        if given["round"] >= 4:
            how = replace(how, factors=lambda norms, real=how.factors: 1.05 * real(norms))
        return real(self, weights, clients, how, **given)

    return train_and_sum


longer_later = changed(CohortEngine, "train_and_sum", _longer)
"""An engine that from the fifth round on clips at 1.05 times the bound: the first rounds do not show it."""


def off_the_grid(total: Floats | Whole, noise: Integers, *, step: float) -> Whole:
    """Sum and noise are added as floats."""
    values = total.values if isinstance(total, Whole) else total
    return Whole(steps=values / step + noise, step=step)  # type: ignore[arg-type]  # they are floats, and should not be


bits_without_noise = after(
    RoundNoise,
    "of",
    lambda noise: replace(noise, bits=GaussianNoise(noise_multiplier=0.01, clip_norm=0.5)) if noise.bits else noise,
)


def _relation_of_samples(real: Callable[..., None]) -> Callable[..., None]:
    def after_init(self: FixedSize) -> None:
        real(self)
        object.__setattr__(self, "relation", NeighboringRelation.ADD_OR_REMOVE_ONE)

    return after_init


fixed_as_poisson = both(
    instead(
        FixedSize,
        "event",
        lambda self, noise: PoissonSampledDpEvent(self.cohort / self.clients, GaussianDpEvent(noise)),
    ),
    changed(FixedSize, "__post_init__", _relation_of_samples),
)
another_delta = both(  # the ledger takes the plan's word
    changed(plans, "price", lambda real: lambda event, *, delta, **given: real(event, delta=10 * delta, **given)),
    changed(
        plans,
        "smallest_noise",
        lambda real: (
            lambda event, *, budget, **given: real(event, budget=replace(budget, delta=10 * budget.delta), **given)
        ),
    ),
    instead(Ledger, "_check_budget", lambda self, runs: None),
)


def charged_elsewhere(real: Callable[..., Receipt]) -> Callable[..., Receipt]:
    """Rounds are charged to a ledger that nobody keeps, beside the one that is shown."""

    def charge(self: PrivateRun, number: int, clip: Clip, *, listed: int = 0) -> Receipt:
        kept = self.ledger
        if "decoy" not in vars(self):
            decoy = Ledger.in_memory(budget=self.plan.budget, relation=self.plan.relation)
            decoy.reserve(self.plan.runs, label=self.label)
            vars(self)["decoy"] = decoy
        self.ledger = vars(self)["decoy"]
        try:
            return real(self, number, clip, listed=listed)
        finally:
            self.ledger = kept

    return charge


less_noise_in_earnest = changed(
    grid,
    "sample_noise",
    lambda real: lambda *, stream, **given: real(stream=stream, **given) // (1 + isinstance(stream, SystemStream)),
)
one_client_each_round = changed(
    Poisson,
    "sample",
    lambda real: lambda self, stream, *, round: np.union1d(real(self, stream, round=round), [self.clients - 1]),
)


PLANS: dict[str, tuple[str, Breakage, str]] = {
    # name: the plan that shows it, the breakage, and what has to speak against it
    "noise halved": ("everyone", noise_is(0.5), "noise: 0."),
    "noise 10 % short": ("everyone", noise_is(0.9), "noise: 0.8"),
    "noise 10 % short, of samples": ("poisson", noise_is(0.9), "noise: 0.9"),
    "noise 10 % short, local": ("local", noise_is(0.9), "noise that clients send: 0.8"),
    "noise 10 % short, where every number has a limit": ("elementwise", noise_is(0.9), "noise: 0."),
    "noise on the first layer only": ("layers", per_layer(1.0, 0.0), "noise of part 1"),
    "noise missing in the first layer": ("layers", per_layer(0.0, 1.0), "noise of part 0"),
    "noise scaled by the size of its layer": ("layers", per_layer(0.75**0.5, 0.25**0.5), "noise of part"),
    "noise repeated each round": (
        "everyone",
        noise_from(lambda receipt, purpose, indices: receipt._randomness.stream(purpose)),
        "noise of two rounds",
    ),
    "noise of all clients alike": (
        "local",
        noise_from(lambda receipt, purpose, indices: receipt._randomness.stream(purpose, indices[0])),
        "noise of two clients",
    ),
    "noise from a fixed seed": (
        "everyone",
        noise_from(lambda receipt, purpose, indices: SeededRandomness(7).stream(purpose, *indices)),
        "noise that comes again",
    ),
    "noise short in earnest alone": ("everyone", less_noise_in_earnest, "noise in earnest"),
    "one client each round": ("poisson", one_client_each_round, "furthest off"),
    "correlated noise without its memory": (
        "correlated",
        instead(CorrelatedNoise, "echo", lambda self, memory, size: np.zeros(size)),
        "noise",
    ),
    "clip inverted": ("fixed clip", clip_inverted, "refused: a sum of norm"),
    "clipped at twice the bound": ("fixed clip", clip_twice, "longest contribution"),
    "clip off for one layer": ("layers", clip_off_for_one_layer, "refused: a sum of norm"),
    "not a number passes": (
        "fixed clip",
        changed(clipped_sum, "clip_rows", not_a_number_passes),
        "refused: a sum of norm",
    ),
    "denominator realised": (
        "poisson",
        changed(
            PrivateRound,
            "release",
            lambda real: lambda self: replace(real(self), cohort=float(max(1, self._sum.observed.contributions))),
        ),
        "divisor",
    ),
    "client counted twice": (
        "everyone",
        changed(ClippedSum, "_add", lambda real: lambda self, steps, *, step: real(self, 2 * steps, step=step)),
        "longest contribution",
    ),
    "clients come as often as they like": (
        "everyone",
        instead(PrivateRound, "_admit", lambda self, clients, *, contributions: None),
        "contributes twice",
    ),
    "centred by the others": (
        "everyone",
        changed(
            ClippedSum, "add", lambda real: lambda self, rows: real(self, rows - 0.5 * np.nan_to_num(rows).mean(axis=0))
        ),
        "what others change",
    ),
    "sum off the grid": ("everyone", instead(grid, "add", off_the_grid), "what is released"),
    "the first round's noise for all": (
        "growing",
        changed(Plan, "noise", lambda real: lambda self, number, clip: real(self, 0, clip)),
        "noise that releases state",
    ),
    "bits without noise": ("quantile", bits_without_noise, "clip's bits"),
    "bits unpaid": (
        "quantile",
        instead(QuantileClip, "update_multiplier", lambda self, noise_multiplier: noise_multiplier),
        "noise that releases state",
    ),
    "everybody each round": (
        "poisson",
        instead(Poisson, "sample", lambda self, stream, *, round: np.arange(self.clients)),
        "how often",
    ),
    "half the probability": (
        "poisson",
        instead(
            Poisson, "event", lambda self, noise: PoissonSampledDpEvent(self.sampling_prob / 2, GaussianDpEvent(noise))
        ),
        "sampling that is charged",
    ),
    "fixed size priced as Poisson": ("fixed", fixed_as_poisson, "sampling that is charged"),
    "priced at another delta": ("poisson", another_delta, "price"),
    "charged elsewhere": ("everyone", changed(PrivateRun, "charge", charged_elsewhere), "charges"),
}
