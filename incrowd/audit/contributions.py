"""The exact influence of one contribution on a release, and the attempts that a round must refuse.

A simulation's seed reveals its noise: two rounds with the same seed, with and without a contribution, differ by what
entered of it, to the last bit.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats, Randomness, SeededRandomness, SystemRandomness
from incrowd.audit.bounds import Check
from incrowd.audit.canaries import ledger_of, run_of, send, shared_in
from incrowd.errors import IncrowdError
from incrowd.privacy.mechanism.clipping import (
    Clip,
    ElementwiseClip,
    MedianClip,
    NormalisedClip,
    PerLayerClip,
    ThirdPartyClip,
    clip_rows,
)
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.release import PrivateRound, PrivateRun, Release

ROUNDING = 1e-4
"""The grid, and factors that are rounded down, may shorten a contribution by this share."""

_SIZE = 24
"""The size of a contribution, where the clip takes any."""


@dataclass(frozen=True, kw_only=True)
class FirstRound:
    """The first round of a plan, which runs as often as needed, with any contributions."""

    plan: Plan

    @cached_property
    def size(self) -> int:
        """The size of a contribution."""
        clip = self.plan.config.clip
        if isinstance(clip, PerLayerClip):
            return sum(clip.parts)
        return clip.size if isinstance(clip, ElementwiseClip) else _SIZE

    @cached_property
    def seed(self) -> int:
        """A seed whose first cohort is not empty."""
        return next(seed for seed in range(100_000) if len(self._run(SeededRandomness(seed=seed)).cohort(0)))

    @cached_property
    def drawn(self) -> NDArray[np.int64]:
        """The clients of that cohort."""
        return self._run(SeededRandomness(seed=self.seed)).cohort(0)

    def release(self, rows: Sequence[Floats]) -> Release:
        """Release the seeded round with these contributions of the cohort's first clients."""
        return self.opened(rows, SeededRandomness(seed=self.seed))[1].release()

    def entered(self, row: Floats, *, others: Sequence[Floats] = ()) -> Floats:
        """The difference that a contribution makes to a release with those of others."""
        apart = self.release([*others, row]), self.release([*others, np.zeros(self.size)])
        steps = apart[0].total.steps - apart[1].total.steps
        return steps.astype(np.float64) * apart[0].total.step

    def opened(self, rows: Sequence[Floats], randomness: Randomness) -> tuple[PrivateRun, PrivateRound]:
        """Open a run and its first round, with these contributions of its cohort's first clients."""
        run = self._run(randomness)
        opened, drawn = run.round(0), run.cohort(0)
        sends = drawn[: len(rows)]
        send(opened, self.plan, drawn, np.array(rows[: len(sends)]).reshape(-1, self.size), clients=sends)
        return run, opened

    @cached_property
    def slack(self) -> float:
        """The bounds by which rounding with a share of the noise may change a contribution's length."""
        if self.plan.noise_by != "parties":
            return 0.0
        return math.sqrt(self.size) * shared_in(self.plan).step / shared_in(self.plan).noise.clip_norm

    def _run(self, randomness: Randomness) -> PrivateRun:
        return run_of(self.plan, randomness, self.size)


def contribution_checks(plan: Plan) -> list[Check]:
    """Check that hostile contributions enter within the bound, and independently of other clients.

    The median of a cohort depends on other clients, as its statement says: such a plan gets the last check alone.
    """
    first, clip = FirstRound(plan=plan), plan.config.clip
    if isinstance(clip, MedianClip):
        return [_denominator(first)]
    lengths = {name: _length(clip, first.entered(row)) for name, row in _odd(first.size)}
    worst = max(lengths, key=lambda name: lengths[name])
    return [
        Check(
            "longest contribution that enters",
            f"{lengths[worst]:.6f} bounds ({worst})",
            "at most 1",
            holds=lengths[worst] <= 1 + 1e-6 + first.slack,
            note=f"{len(lengths)} odd contributions were tried; would see {first.slack:.2g} bounds more",
        ),
        _as_stated(first, clip),
        _alone(first),
        _denominator(first),
    ]


def order_checks(plan: Plan) -> list[Check]:
    """Check that each client and each round counts once, within the budget, and that noise is never repeated."""
    first = FirstRound(plan=plan)
    seeded, ones = SeededRandomness(seed=first.seed), np.ones(first.size)

    def twice() -> None:
        first.opened([ones], seeded)[1].add(ones[None], clients=first.drawn[:1])

    def stranger() -> None:
        first.opened([], seeded)[1].add(ones[None], clients=[plan.round(0).sampler.clients])

    def again() -> None:
        run, opened = first.opened([], SystemRandomness())
        opened.release()
        repeated = run.round(0)
        send(repeated, plan, run.cohort(0), np.zeros((0, first.size)), clients=[])
        repeated.release()

    def second() -> None:
        ledger = ledger_of(plan)
        for label in ("first", "second"):
            PrivateRun(plan, ledger=ledger, randomness=SystemRandomness(), size=first.size, label=label)

    attempts = {
        "a client that contributes twice": twice,
        "a client that the plan does not have": stranger,
        "a round that is released again": again,
        "a second run on a ledger that is full": second,
    }
    found = []
    for name, attempt in attempts.items():
        try:
            attempt()
            found.append(Check(name, "let in", "refused", holds=False))
        except IncrowdError:
            found.append(Check(name, "refused", "refused", holds=True))
    zeros = [np.zeros(first.size)]
    one, other = (first.opened(zeros, SystemRandomness())[1].release().total for _ in range(2))
    same = float((one.steps == other.steps).mean())
    return [
        *found,
        Check("noise that comes again", f"{same:.0%} of the numbers", "none", holds=same < 0.5),
        on_the_grid("what is released", [one, other]),
    ]


def on_the_grid(name: str, released: Sequence[Whole]) -> Check:
    """Check that releases are whole steps of a public grid, whose step is a power of two."""
    whole = all(one.steps.dtype == np.int64 and math.frexp(one.step)[0] == 0.5 for one in released)
    return Check(name, "whole steps" if whole else "floats", "whole steps of a public grid", holds=whole)


def _odd(size: int) -> Iterator[tuple[str, Floats]]:
    """Hostile contributions."""
    stream = SeededRandomness(seed=0).stream("audit")
    random = stream.normals(size)
    yield "zeros", np.zeros(size)
    yield "ordinary", random
    yield "a million times as long", 1e6 * random
    yield "1e-310 everywhere", np.full(size, 1e-310)
    yield "the largest floats", np.full(size, np.finfo(np.float64).max)
    yield "one number of 1e300", np.eye(1, size)[0] * 1e300
    yield "not a number", np.full(size, np.nan)
    yield "one that is not a number", np.where(np.arange(size) == 0, np.nan, 1.0)
    yield "infinite", np.full(size, np.inf)
    yield "both infinities", np.where(np.arange(size) % 2, np.inf, -np.inf)
    for place in {0, size - 1}:
        yield f"number {place} alone", np.eye(1, size, place)[0] * 1e3
    yield "huge and tiny", np.where(np.arange(size) % 2, 1e200, 1e-200)


def _length(clip: Clip, entered: Floats) -> float:
    return _in_bounds(clip, entered) if np.isfinite(entered).all() else math.inf


def _as_stated(first: FirstRound, clip: Clip) -> Check:
    """Check that short and long contributions enter as a textbook clips them."""
    stream = SeededRandomness(seed=1).stream("audit")
    off = 0.0
    for share in (0.1, 0.9, 3.0, 50.0):
        row = stream.normals(first.size)
        row *= share / _in_bounds(clip, row)
        off = max(off, _length(clip, first.entered(row) - slowly_clipped(clip, row)))
    holds = off <= ROUNDING + first.slack
    return Check("what a clip makes of a contribution", f"off by {off:.3g} bounds", type(clip).__name__, holds=holds)


def _alone(first: FirstRound) -> Check:
    """Check that other contributions do not change what enters."""
    if first.drawn.size < 2:
        return Check("what others change", "nobody else is drawn", "nothing", holds=True)
    stream = SeededRandomness(seed=2).stream("audit")
    row = stream.normals(first.size)
    alone = first.entered(row)
    company = [stream.normals(first.size) * scale for scale in (1e-6, 1.0, 1e6, np.nan)]
    off = max(float(np.abs(first.entered(row, others=[other]) - alone).max()) for other in company)
    steps = off / first.release([]).total.step
    measured = f"{steps:.3g} step{'' if steps == 1 else 's'} of the grid"
    return Check("what others change", measured, "at most the one by which a sum is rounded", holds=steps <= 1)


def _denominator(first: FirstRound) -> Check:
    """Check that the divisor is the planned one, however many clients answer."""
    planned = first.plan.round(0).sampler.expected_cohort
    releases = [first.release([np.ones(first.size)] * count) for count in {0, 1, min(2, first.drawn.size)}]
    divisors = []
    for release in releases:
        total = release.total.values
        place = int(np.abs(total).argmax())
        divisors.append(float(total[place] / release.mean[place]) if release.mean[place] else planned)
    worst = max(divisors, key=lambda divisor: abs(divisor - planned))
    holds = abs(worst - planned) <= 1e-9 * planned
    return Check("divisor of a mean", f"{worst:.6g}", f"{planned:.6g}, whoever answers", holds=holds)


def slowly_clipped(clip: Clip, row: Floats) -> Floats:
    """Clip a contribution as a textbook does; one that is not finite counts as zero."""
    if not np.isfinite(row).all():
        return np.zeros_like(row)
    if isinstance(clip, ElementwiseClip):
        return np.clip(row, -clip.limit, clip.limit)
    if isinstance(clip, ThirdPartyClip):
        return clip_rows(clip, row).rows.reshape(-1)
    return np.concatenate([_part(clip, part, bound) for part, bound in _parts(clip, row)])


def _parts(clip: Clip, row: Floats) -> list[tuple[Floats, float]]:
    """The separately bounded parts of a contribution, each with its bound."""
    if isinstance(clip, PerLayerClip):
        return list(zip(np.split(row, np.cumsum(clip.parts)[:-1]), clip.clip_norms, strict=True))
    return [(row, clip.clip_norm)]


def _in_bounds(clip: Clip, row: Floats) -> float:
    """The length of a contribution's longest part, in bounds; 1 may enter."""
    if isinstance(clip, ElementwiseClip):
        return float(np.abs(row).max() / clip.limit)
    return max(float(np.linalg.norm(part)) / bound for part, bound in _parts(clip, row))


def _part(clip: Clip, part: Floats, bound: float) -> Floats:
    largest = float(np.abs(part).max(initial=0.0))
    if largest < 1e-280:
        return np.zeros_like(part)
    norm = float(np.linalg.norm(part / largest)) * largest if largest < 1e150 else np.inf
    if norm == np.inf:
        return part / largest / float(np.linalg.norm(part / largest)) * bound
    scaled: Floats = part * (bound / norm if isinstance(clip, NormalisedClip) else min(1.0, bound / norm))
    return scaled
