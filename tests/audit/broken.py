"""Pipelines that are broken on purpose: each changes one function of the product for as long as a `with` block lasts.

These are the bugs that published software has had, or nearly had. None of them is refused by what they break.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent

from incrowd._random import Floats, Integers, SeededRandomness, Stream, SystemStream
from incrowd.learning.contributions import Contributions, FlatDelta, Total
from incrowd.learning.engine import CohortEngine
from incrowd.learning.mean_query import VectorCohort, VectorRows
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger import ledger as ledgers
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism import clipped_sum, clipping, grid
from incrowd.privacy.mechanism.clipped_sum import ClippedSum
from incrowd.privacy.mechanism.clipping import Clip, Clipped, FixedClip, PerLayerClip, QuantileClip
from incrowd.privacy.mechanism.correlated import Banded
from incrowd.privacy.mechanism.grid import GaussianNoise, Whole
from incrowd.privacy.paid import RoundNoise
from incrowd.privacy.plan import plan as plans
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.sampling import FixedSize, Poisson
from incrowd.privacy.release import PrivateRound, PrivateRun, Release

LAYERS = (60, 20)
"""The layers of the plans that have some."""

Breakage = Callable[[], Any]


@contextmanager
def changed(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Something of the product, replaced by what is made of it."""
    own, before = name in vars(owner), inspect.getattr_static(owner, name)
    setattr(owner, name, make(before))
    try:
        yield
    finally:
        setattr(owner, name, before) if own else delattr(owner, name)


def ledger_believes() -> Any:
    """The ledger takes any event for any noise, so that the checks of the audit have to see what is wrong."""
    return changed(ledgers, "check_paid", lambda real: lambda *given, **named: None)


def noise_is(factor: float) -> Breakage:
    """Noise of another size than what was charged."""
    return lambda: changed(
        GaussianNoise, "scale", lambda real: lambda self, contributions_bound: factor * real(self, contributions_bound)
    )


def noise_by_number(factors: Callable[[int], Floats]) -> Breakage:
    """Noise that depends on where a number is."""

    def make(real: Callable[..., Integers]) -> Callable[..., Integers]:
        def sample(*, scale: float, size: int, stream: Stream) -> Integers:
            drawn = real(scale=scale, size=size, stream=stream)
            return (drawn * factors(size)).astype(np.int64)

        return sample

    return lambda: changed(grid, "sample_noise", make)


def per_layer(*factors: float) -> Breakage:
    """Noise times a factor a layer, where there are layers."""
    return noise_by_number(lambda size: np.repeat(factors, LAYERS) if size == sum(LAYERS) else np.ones(size))


def noise_from(name: Callable[[Receipt, str, tuple[int, ...]], Stream]) -> Breakage:
    """Noise that comes from another stream than its own."""

    def make(real: Callable[..., Stream]) -> Callable[..., Stream]:
        def stream(self: Receipt, noise: object, purpose: str, *indices: int) -> Stream:
            real(self, noise, purpose, *indices)
            return name(self, purpose, indices)

        return stream

    return lambda: changed(Receipt, "noise_stream", make)


def clip_inverted() -> Any:
    """Short contributions are made as long as the bound, and long ones stay."""

    def factors(bound: float | Floats, norms: Floats) -> Floats:
        return np.where(norms >= bound, 1.0, bound / np.maximum(norms, 1e-300))

    return changed(clipping, "_down_to", lambda real: factors)


def clip_twice() -> Any:
    """Contributions are clipped at twice the bound."""
    return changed(FixedClip, "factors", lambda real: lambda self, norms: clipping._down_to(2 * self.clip_norm, norms))


def clip_off_for_one_layer() -> Any:
    """The last layer is as long as it is."""

    def make(real: Callable[..., Floats]) -> Callable[..., Floats]:
        def factors(self: PerLayerClip, norms: Floats) -> Floats:
            given = real(self, norms).copy()
            given[:, -1] = 1.0
            return given

        return factors

    return changed(PerLayerClip, "factors", make)


def not_a_number_passes() -> Any:
    """What is not finite is no longer than any bound: its comparison is false."""

    def make(real: Callable[..., Clipped]) -> Callable[..., Clipped]:
        def clip_rows(clip: Clip, rows: Floats) -> Clipped:
            rows = np.atleast_2d(np.asarray(rows, np.float64))
            given = real(clip, rows)
            odd = ~np.isfinite(rows).all(axis=1)
            finite = np.nan_to_num(rows[odd], nan=0.0, posinf=0.0, neginf=0.0)
            given.rows[odd] = np.where(np.abs(finite) < 10, finite * 10, finite)
            return given

        return clip_rows

    return changed(clipped_sum, "clip_rows", make)


def _releases(change: Callable[[PrivateRound, Release], Release]) -> Any:
    def make(real: Callable[[PrivateRound], Release]) -> Callable[[PrivateRound], Release]:
        return lambda self: change(self, real(self))

    return changed(PrivateRound, "release", make)


def denominator_realised() -> Any:
    """A mean is over those who answered."""
    return _releases(lambda self, said: replace(said, cohort=float(max(1, self._sum.observed.contributions))))


def counted_twice() -> Any:
    """Each contribution enters the sum twice."""
    return changed(ClippedSum, "_add", lambda real: lambda self, steps, *, step: real(self, 2 * steps, step=step))


def anybody_any_time() -> Any:
    """Nobody looks at who contributes, and how often."""
    return changed(PrivateRound, "_admit", lambda real: lambda self, clients, *, contributions: None)


def centred_by_the_others() -> Any:
    """Contributions are centred among those that come together, as batch normalisation does."""

    def make(real: Callable[..., None]) -> Callable[..., None]:
        return lambda self, rows: real(self, rows - 0.5 * np.nan_to_num(rows).mean(axis=0))

    return changed(ClippedSum, "add", make)


def training_in_company() -> Any:
    """What a client learns depends on how many are trained with it."""

    def make(real: Callable[..., Iterator[Contributions]]) -> Callable[..., Iterator[Contributions]]:
        def train(self: CohortEngine, weights: Any, clients: Any, **given: Any) -> Iterator[Contributions]:
            for chunk in real(self, weights, clients, **given):
                rows = torch.from_numpy(chunk.rows()) * (1 + 2.0**-20 * len(clients))
                yield Contributions(chunk.clients, FlatDelta(rows))

        return train

    return changed(CohortEngine, "train", make)


def query_in_company() -> Any:
    """The answer of a client to a query depends on how many are asked with it."""

    def make(real: Callable[..., Iterator[VectorRows]]) -> Callable[..., Iterator[VectorRows]]:
        def chunks(self: VectorCohort) -> Iterator[VectorRows]:
            for chunk in real(self):
                yield VectorRows(chunk.clients, chunk.contributions + len(chunk.clients))

        return chunks

    return changed(VectorCohort, "chunks", make)


def engine_adds_twice() -> Any:
    """The fast way of an engine adds everything up twice."""
    return changed(Total, "flat", lambda real: lambda self: 2 * real(self))


def longer_later() -> Any:
    """An engine that from the fifth round on clips at 1.05 times the bound: the first rounds do not show it."""

    def make(real: Callable[..., Any]) -> Callable[..., Any]:
        def train_and_sum(self: CohortEngine, weights: Any, clients: Any, how: Any, **given: Any) -> Any:
            if given["round"] >= 4:
                how = replace(how, factors=lambda norms, real=how.factors: 1.05 * real(norms))
            return real(self, weights, clients, how, **given)

        return train_and_sum

    return changed(CohortEngine, "train_and_sum", make)


def sum_off_the_grid() -> Any:
    """Sum and noise are added as floats."""

    def add(total: Floats | Whole, noise: Integers, *, step: float) -> Whole:
        values = total.values if isinstance(total, Whole) else total
        return Whole(steps=values / step + noise, step=step)  # type: ignore[arg-type]  # they are floats, and should not be

    return changed(grid, "add", lambda real: add)


def first_noise_for_all_rounds() -> Any:
    """Later rounds of a schedule have the first round's noise."""
    return changed(Plan, "noise", lambda real: lambda self, number, clip: real(self, 0, clip))


def bits_without_noise() -> Any:
    """The share that moves an adaptive bound is hardly noised."""

    def make(real: Any) -> Any:
        def of(cls: type[RoundNoise], plan: Plan, number: int, clip: Clip, *, listed: int = 0) -> RoundNoise:
            given: RoundNoise = real.__func__(cls, plan, number, clip, listed=listed)
            return replace(given, bits=GaussianNoise(noise_multiplier=0.01, clip_norm=0.5)) if given.bits else given

        return classmethod(of)

    return changed(RoundNoise, "of", make)


def bits_unpaid() -> Any:
    """The update has the noise that it would have had without bits."""
    return changed(QuantileClip, "update_multiplier", lambda real: lambda self, noise_multiplier: noise_multiplier)


def everybody_each_round() -> Any:
    """The sample that is priced is not drawn."""
    return changed(Poisson, "sample", lambda real: lambda self, stream, *, round: np.arange(self.clients))


def half_the_probability() -> Any:
    """The accountant is told half of the sampling probability."""

    def event(self: Poisson, noise_multiplier: float) -> DpEvent:
        return PoissonSampledDpEvent(self.sampling_prob / 2, GaussianDpEvent(noise_multiplier))

    return changed(Poisson, "event", lambda real: event)


@contextmanager
def fixed_as_poisson() -> Iterator[None]:
    """Cohorts of a fixed size are priced as a Poisson sample."""

    def event(self: FixedSize, noise_multiplier: float) -> DpEvent:
        return PoissonSampledDpEvent(self.cohort / self.clients, GaussianDpEvent(noise_multiplier))

    def make(real: Callable[..., None]) -> Callable[..., None]:
        def after(self: FixedSize) -> None:
            real(self)
            object.__setattr__(self, "relation", NeighboringRelation.ADD_OR_REMOVE_ONE)

        return after

    with changed(FixedSize, "event", lambda real: event), changed(FixedSize, "__post_init__", make):
        yield


@contextmanager
def another_delta() -> Iterator[None]:
    """The plan is calibrated and priced at ten times the delta, and its ledger takes its word."""

    def priced(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda event, *, delta, **given: real(event, delta=10 * delta, **given)

    def calibrated(real: Callable[..., Any]) -> Callable[..., Any]:
        def least(event: Any, *, budget: Budget, **given: Any) -> Any:
            return real(event, budget=replace(budget, delta=10 * budget.delta), **given)

        return least

    with (
        changed(plans, "price", priced),
        changed(plans, "smallest_noise", calibrated),
        changed(Ledger, "_check_budget", lambda real: lambda self, runs: None),
    ):
        yield


def charged_elsewhere() -> Any:
    """Rounds are charged to a ledger that nobody keeps, beside the one that is shown."""

    def make(real: Callable[..., Receipt]) -> Callable[..., Receipt]:
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

    return changed(PrivateRun, "charge", make)


def no_memory() -> Any:
    """Correlated noise takes nothing back."""
    return changed(Banded, "echo", lambda real: lambda self, memory, size: np.zeros(size))


def less_noise_in_earnest() -> Any:
    """Where nobody can repeat it, noise is drawn short."""

    def make(real: Callable[..., Integers]) -> Callable[..., Integers]:
        def sample(*, scale: float, size: int, stream: Stream) -> Integers:
            drawn = real(scale=scale, size=size, stream=stream)
            return drawn // 2 if isinstance(stream, SystemStream) else drawn

        return sample

    return changed(grid, "sample_noise", make)


def one_client_each_round() -> Any:
    """The client with the last number takes part in all rounds."""

    def make(real: Callable[..., Integers]) -> Callable[..., Integers]:
        def sample(self: Poisson, stream: Stream, *, round: int) -> Integers:
            return np.union1d(real(self, stream, round=round), [self.clients - 1])

        return sample

    return changed(Poisson, "sample", make)


BROKEN: dict[str, tuple[str, Breakage, str]] = {
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
    "correlated noise without its memory": ("correlated", no_memory, "noise"),
    "clip inverted": ("fixed clip", clip_inverted, "refused: a sum of norm"),
    "clipped at twice the bound": ("fixed clip", clip_twice, "longest contribution"),
    "clip off for one layer": ("layers", clip_off_for_one_layer, "refused: a sum of norm"),
    "not a number passes": ("fixed clip", not_a_number_passes, "refused: a sum of norm"),
    "denominator realised": ("poisson", denominator_realised, "divisor"),
    "client counted twice": ("everyone", counted_twice, "longest contribution"),
    "clients come as often as they like": ("everyone", anybody_any_time, "contributes twice"),
    "centred by the others": ("everyone", centred_by_the_others, "what others change"),
    "sum off the grid": ("everyone", sum_off_the_grid, "what is released"),
    "the first round's noise for all": ("growing", first_noise_for_all_rounds, "noise that releases state"),
    "bits without noise": ("quantile", bits_without_noise, "clip's bits"),
    "bits unpaid": ("quantile", bits_unpaid, "noise that releases state"),
    "everybody each round": ("poisson", everybody_each_round, "how often"),
    "half the probability": ("poisson", half_the_probability, "sampling that is charged"),
    "fixed size priced as Poisson": ("fixed", fixed_as_poisson, "sampling that is charged"),
    "priced at another delta": ("poisson", another_delta, "price"),
    "charged elsewhere": ("everyone", charged_elsewhere, "charges"),
}
