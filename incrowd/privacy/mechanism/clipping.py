"""Bounds on the contribution of one client.

Every clip bounds a whole contribution. Most scale parts of it by factors that depend on norms alone, so a batched
engine can compute norms where its arrays live and take only the factors from here. The bounds are public constants;
`QuantileClip` follows a quantile of the norms and pays for it from the noise, and `MedianClip` is not private.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from incrowd import _extensions, _validate
from incrowd._random import Floats
from incrowd.errors import ConfigError, DataError

SAFETY = 1 - 2.0**-24
"""Factors are this much smaller than the formula, so that rounding cannot push a norm above its bound."""

SMALLEST, LARGEST = 1e-100, 1e100
"""Bounds outside of this range would meet the ends of floating point."""

ROUNDED_UP = 1 + 2.0**-50
"""Computed bounds are this much larger than the formula, for the same reason."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The place of named arrays in one flat vector, in the order of the names.

    Guarantee: all arrays become one vector with one norm, so that several arrays cannot be clipped apart by accident;
    arrays of whole numbers and of truth values count like any other (they are converted to floating point).
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.shapes):
            raise ConfigError(field="shapes", value=self.shapes, remedy=f"give one shape for each of {self.names}")
        if len(set(self.names)) != len(self.names):
            raise ConfigError(field="names", value=self.names, remedy="give every array a name of its own")

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> "Layout":
        """The layout of these arrays."""
        return cls(names=tuple(arrays), shapes=tuple(np.shape(array) for array in arrays.values()))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of numbers in each array."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """The number of numbers in the flat vector."""
        return sum(self.sizes)

    def flatten(self, arrays: Mapping[str, NDArray[Any]]) -> Floats:
        """The arrays as one vector."""
        if set(arrays) != set(self.names):
            odd = sorted(set(arrays) ^ set(self.names))
            raise DataError(f"a contribution has other arrays than its layout: {odd}; send exactly {list(self.names)}")
        vector = np.empty(self.size)
        for name, part in self.unflatten(vector).items():
            if np.shape(arrays[name]) != part.shape:
                raise DataError(f"array {name!r} has shape {np.shape(arrays[name])}; its layout says {part.shape}")
            part[...] = arrays[name]
        return vector

    def unflatten(self, vector: Floats) -> dict[str, Floats]:
        """The vector as named arrays (views, not copies)."""
        if vector.shape != (self.size,):
            raise DataError(f"a vector of shape {vector.shape} does not fit a layout of {self.size} numbers")
        parts = np.split(vector, np.cumsum(self.sizes)[:-1]) if self.names else []
        return {name: part.reshape(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}


class Clip(Protocol):
    """A bound on one contribution, and the way to enforce it."""

    @property
    def clip_norm(self) -> float:
        """The L2 norm that no clipped contribution exceeds: the sensitivity that the noise has to cover."""

    @property
    def private(self) -> bool:
        """Whether the bound reveals nothing about the clients beyond the price that is paid."""

    def clip(self, rows: Floats) -> Floats:
        """Clip contributions, one a row, all finite."""


@runtime_checkable
class ScalingClip(Clip, Protocol):
    """A clip that scales parts of a contribution by factors which depend on the norms of these parts alone."""

    @property
    def parts(self) -> tuple[int, ...] | None:
        """The sizes of the parts that have a norm each; None if the whole contribution is the one part."""

    def factors(self, norms: Floats) -> Floats:
        """The factor of each part: norms and factors have a row a contribution and a column a part."""


@dataclass(frozen=True, kw_only=True)
class _ScalesAll:
    """A clip that scales the whole contribution down to its bound."""

    private: ClassVar[bool] = True
    parts: ClassVar[None] = None
    clip_norm: float

    def __post_init__(self) -> None:
        _check_bounds(clip_norm=self.clip_norm)

    def factors(self, norms: Floats) -> Floats:
        """min(1, C / norm), rounded down."""
        return _down_to(self.clip_norm, norms)

    def clip(self, rows: Floats) -> Floats:
        """See `Clip.clip`."""
        return scale(self, rows)


@dataclass(frozen=True, kw_only=True)
class FixedClip(_ScalesAll):
    """Scale a contribution down to the L2 norm `clip_norm` if it is longer.

    Guarantee: the result is finite with a norm of at most `clip_norm`; a contribution is never scaled up; a clearly
    shorter one stays exactly as it is. A norm equal to the bound may shrink by one part in 10^7.
    """


@dataclass(frozen=True, kw_only=True)
class NormalisedClip(_ScalesAll):
    """Scale every contribution to the L2 norm `clip_norm`, up or down.

    Guarantee: the norm of the result is `clip_norm` within one part in 10^7, never more; an all-zero contribution stays
    zero. No threshold has to be tuned on, or read from, private data.
    """

    clip_norm: float = 1.0

    def factors(self, norms: Floats) -> Floats:
        """C / norm, rounded down; 0 for a norm of 0."""
        measurable = norms > max(self.clip_norm, 1.0) * 1e-290
        return np.where(measurable, self.clip_norm * SAFETY / np.where(measurable, norms, 1.0), 0.0)


@dataclass(frozen=True, kw_only=True)
class PerLayerClip:
    """Scale each layer down to an L2 norm of its own.

    Guarantee: layer i of the result has a norm of at most clip_norms[i], and the layers are priced as one joint
    mechanism: `clip_norm` is the root of the sum of their squares, and one noise of that size covers all of them.
    """

    private: ClassVar[bool] = True
    clip_norms: tuple[float, ...]
    parts: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.clip_norms) != len(self.parts) or not self.parts:
            raise ConfigError(field="clip_norms", value=self.clip_norms, remedy=f"give one bound a layer: {self.parts}")
        for index, (bound, size) in enumerate(zip(self.clip_norms, self.parts, strict=True)):
            _check_bounds(**{f"clip_norms[{index}]": bound})
            _validate.count(**{f"parts[{index}]": size})

    @property
    def clip_norm(self) -> float:
        """See `Clip.clip_norm`."""
        return math.hypot(*self.clip_norms)

    def factors(self, norms: Floats) -> Floats:
        """min(1, C_i / norm_i), rounded down."""
        return _down_to(np.array(self.clip_norms), norms)

    def clip(self, rows: Floats) -> Floats:
        """See `Clip.clip`."""
        return scale(self, rows)


@dataclass(frozen=True, kw_only=True)
class ElementwiseClip:
    """Limit every number of a contribution to [-limit, limit]: its L2 norm is at most limit * sqrt(size)."""

    private: ClassVar[bool] = True
    limit: float
    size: int

    def __post_init__(self) -> None:
        _check_bounds(limit=self.limit)
        _validate.count(size=self.size)

    @property
    def clip_norm(self) -> float:
        """See `Clip.clip_norm`."""
        return self.limit * math.sqrt(self.size) * ROUNDED_UP

    def clip(self, rows: Floats) -> Floats:
        """See `Clip.clip`."""
        _fits(self.size, rows)
        return np.clip(rows, -self.limit, self.limit)


@dataclass(frozen=True, kw_only=True)
class QuantileClip(_ScalesAll):
    """Follow a quantile of the contributions' norms, privately (Andrew, Thakkar, McMahan, Ramaswamy 2021).

    After each round the fraction of contributions that were *not* clipped is released with noise of its own, and the
    next bound is C * exp(-learning_rate * (fraction - quantile)): too few clipped, and the bound falls.

    Guarantee: the round's update and its bits together cost the plan's price of the round: the update's noise
    multiplier is raised to (z^-2 - (2 * bit_noise)^-2)^(-1/2), their Theorem 1. The noise of a round belongs to the
    bound that clipped in that round.
    """

    bit_noise: float
    quantile: float = 0.5
    learning_rate: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.positive(bit_noise=self.bit_noise, learning_rate=self.learning_rate)
        _validate.fraction(quantile=self.quantile)

    def update_multiplier(self, noise_multiplier: float) -> float:
        """The noise multiplier of the update with which update and bits together cost `noise_multiplier`."""
        rest = noise_multiplier**-2 - (2 * self.bit_noise) ** -2
        if rest <= 0:
            raise ConfigError(
                field="bit_noise",
                value=self.bit_noise,
                remedy=f"give more than {noise_multiplier / 2:.6g}, half the round's noise multiplier; "
                "a twentieth of the cohort is usual",
            )
        return float(rest**-0.5)

    def updated(self, fraction_unclipped: float) -> "QuantileClip":
        """The clip of the next round, from the released (noised) fraction of contributions that were not clipped."""
        step = -self.learning_rate * (min(max(fraction_unclipped, 0.0), 1.0) - self.quantile)
        return replace(self, clip_norm=min(max(self.clip_norm * math.exp(step), 1e-12), 1e12))


@dataclass(frozen=True, kw_only=True)
class MedianClip:
    """The 2017 paper's clip: the bound is the median norm of the cohort, read without noise.

    NOT private: the median is a function of private data and its leakage is not in epsilon. It reproduces published
    results, and every statement of a run with it notes that.
    """

    floor: float = 1e-12
    private: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        _check_bounds(floor=self.floor)

    def fit(self, norms: Floats) -> FixedClip:
        """The clip for a cohort with these norms."""
        finite = norms[np.isfinite(norms)]
        median = float(np.median(finite)) if finite.size else 0.0
        return FixedClip(clip_norm=min(max(self.floor, median), LARGEST))


@dataclass(frozen=True, kw_only=True)
class ThirdPartyClip:
    """A registered clip function (`incrowd.types.ClipFunction`) with its bound.

    Guarantee: `clip_rows` measures every row that the function returns, and scales
    it down to `clip_norm`. The function sees one contribution at a time, as a copy. If it returns other numbers than
    before for the same synthetic contribution, it is refused: it may remember contributions.
    """

    private: ClassVar[bool] = True
    name: str
    clip_norm: float

    def __post_init__(self) -> None:
        _check_bounds(clip_norm=self.clip_norm)
        self._check()

    def clip(self, rows: Floats) -> Floats:
        """See `Clip.clip`."""
        clipped = [self._row(row) for row in rows]
        self._check()
        return np.stack(clipped) if clipped else rows

    def _row(self, row: Floats) -> Floats:
        function = _extensions.found("clips", self.name, field="clip")
        clipped: Floats = np.array(function(row[None].copy(), self.clip_norm), dtype=np.float64)  # never its own buffer
        if clipped.shape != (1, row.size):
            raise ConfigError(field="clip", value=self.name, remedy="return as many rows and numbers as it is given")
        return clipped.reshape(-1)

    def _check(self) -> None:
        made_up = 3 * self.clip_norm * np.linspace(-1, 1, 8)
        _extensions.check_unchanged(("clip", self.name, self.clip_norm), self._row(made_up), field="clip")


@dataclass(frozen=True, kw_only=True)
class Clipped:
    """Clipped contributions, one a row, with two flags each. Private."""

    rows: Floats
    dropped: NDArray[np.bool_]
    unclipped: NDArray[np.bool_]


def clip_rows(clip: Clip, rows: NDArray[Any]) -> Clipped:
    """Clip contributions of any numeric type.

    Guarantee: every row of the result is finite and within the clip's bound, even for a third-party clip. A row that
    cannot be (NaN, an infinity, a norm that overflows) is dropped, which is a zero contribution, and marked.
    """
    rows = np.atleast_2d(np.asarray(rows, dtype=np.float64))
    norms = part_norms(rows, None)[:, 0]
    dropped = ~np.isfinite(norms)
    if dropped.any():
        rows = np.where(dropped[:, None], 0.0, rows)
        norms = np.where(dropped, 0.0, norms)
    clipped = clip.clip(rows)
    if type(clip) not in _OURS:
        clipped = _bounded(clip, np.asarray(clipped, dtype=np.float64).reshape(rows.shape))
    return Clipped(rows=clipped, dropped=dropped, unclipped=~dropped & (norms <= clip.clip_norm))


def factors_of(clip: ScalingClip, norms: Floats) -> Floats:
    """The clip's factors for finite norms; factors of a third-party clip are no larger than its bound allows."""
    factors = clip.factors(norms)
    if type(clip) in _OURS:
        return factors
    factors = np.where(np.isfinite(factors), factors, 0.0)
    with np.errstate(over="ignore"):
        lengths = np.hypot.reduce(factors * norms, axis=1)
    return factors * _down_to(clip.clip_norm, lengths)[:, None]


def _bounded(clip: Clip, rows: Floats) -> Floats:
    """The rows of a third-party clip, held to the bound that it states."""
    rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)
    return rows * _down_to(clip.clip_norm, _norms(rows))[:, None]


_OURS = (FixedClip, NormalisedClip, PerLayerClip, ElementwiseClip, QuantileClip)
"""Their bounds are proved; the bounds of all other classes are checked row by row."""


def part_norms(rows: Floats, parts: tuple[int, ...] | None) -> Floats:
    """The L2 norm of each part of each row; not finite if a number of the part is not, or the square overflows."""
    parts = (rows.shape[1],) if parts is None else parts
    _fits(sum(parts), rows)
    pieces = np.split(rows, np.cumsum(parts)[:-1], axis=1)
    return np.stack([_norms(piece) for piece in pieces], axis=1)


def scale(clip: ScalingClip, rows: Floats) -> Floats:
    """Scale each part of each row by the clip's factor."""
    factors = clip.factors(part_norms(rows, clip.parts))
    if clip.parts is not None:
        factors = np.repeat(factors, clip.parts, axis=1)
    return rows * factors


def _check_bounds(**bounds: float) -> None:
    _validate.positive(**bounds)
    for field_name, bound in bounds.items():
        if not SMALLEST <= bound <= LARGEST:
            raise ConfigError(field=field_name, value=bound, remedy=f"give a bound from {SMALLEST:g} to {LARGEST:g}")


def _norms(rows: Floats) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        squares: Floats = np.einsum("ij,ij->i", rows, rows)
    norms = np.sqrt(squares)
    tiny = squares < 1e-280  # squares of so small numbers lose digits, or vanish
    if rows.shape[1] and tiny.any():
        units = np.abs(rows[tiny]).max(axis=1)
        scaled = rows[tiny] / np.where(units > 0, units, 1.0)[:, None]
        norms[tiny] = units * np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    return norms


def _down_to(bound: float | Floats, norms: Floats) -> Floats:
    within = norms <= bound * SAFETY
    return np.where(within, 1.0, bound * SAFETY / np.where(within, 1.0, norms))


def _fits(size: int, rows: Floats) -> None:
    if rows.shape[1] != size:
        remedy = f"the clip is made for contributions of {size} numbers"
        raise ConfigError(field="size", value=rows.shape[1], remedy=remedy)
