"""Plots over the rounds: accuracy, epsilon with the end of the budget, noise and diagnostics."""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Literal

from incrowd.report.numbers import UNKNOWN, count, epsilon_text, number, percent
from incrowd.report.shown import Shown
from incrowd.runs.plots import COLOURS, picture

Value = Callable[[Any], float | None]
Lines = Mapping[str, tuple[Literal["x", "y"], float]]
"""Straight lines at a value of one axis, by their labels."""

ROWS = 100
"""The table behind a plot has at most this many rows, at even distances."""

_DASHES = ("-", "--", ":", "-.")
_QUANTILES = {1: "first quartile", 2: "median", 3: "third quartile", 4: "largest"}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A named curve. `style` selects its colour and dash: a run has the same in every plot."""

    name: str
    points: tuple[tuple[float, float], ...]
    style: int = 0


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A picture (base64; empty without matplotlib), and the table of its values, of which some are left out."""

    png: str
    headings: list[str]
    rows: list[list[str]]
    left_out: int


def _plot(
    curves: Sequence[Curve],
    axis: str,
    *,
    spelt: Callable[[float], str] = number,
    log: bool = False,
    lines: Lines = MappingProxyType({}),
) -> Plot:
    """Draw curves over the rounds."""
    known, png = tuple(one for one in curves if one.points), ""
    if find_spec("matplotlib") is not None:
        png = base64.b64encode(_drawn(axis, known, tuple(lines.items()), log=log)).decode()
    each = [dict(one.points) for one in known]
    values = sorted({value for one in each for value in one})
    kept = values[:: max(1, -(-len(values) // ROWS))]
    return Plot(
        png=png,
        headings=["Rounds", *(one.name or axis for one in known)],
        rows=[[count(at), *("" if at not in one else spelt(one[at]) for one in each)] for at in kept],
        left_out=len(values) - len(kept),
    )


@lru_cache(maxsize=64)
def _drawn(
    axis: str, curves: tuple[Curve, ...], lines: tuple[tuple[str, tuple[str, float]], ...], *, log: bool
) -> bytes:
    """Draw a PNG; the cache spares a live page the plots that stay."""
    with picture("png", height=3.2, dpi=110) as (panel, content):
        for one in curves:
            style, colour = _DASHES[one.style % len(_DASHES)], COLOURS[one.style % len(COLOURS)]
            marker = "o" if len(one.points) <= ROWS // 2 else None
            label = one.name.replace("$", r"\$")  # a name is no formula
            panel.plot(*zip(*one.points, strict=True), style, color=colour, marker=marker, markersize=3, label=label)
        for label, (along, at) in lines:
            draw = panel.axvline if along == "x" else panel.axhline
            draw(at, color="#444444", linestyle="--", linewidth=1, label=label)
        if log:
            panel.set_yscale("log", nonpositive="mask")
        panel.locator_params(axis="x", integer=True)
        panel.set_xlabel("rounds")
        panel.set_ylabel(axis)
        panel.grid(visible=True, alpha=0.25)
        if len(curves) + len(lines) > 1:
            panel.legend(fontsize="small")
    return content.getvalue()


def measured(runs: Sequence[Shown]) -> Plot:
    """Draw the accuracy of all runs, or else their loss."""
    name = "accuracy" if any(row["accuracy"] is not None for one in runs for row in one.rounds) else "loss"
    spelt = percent if name == "accuracy" else number
    known = {spelt(one.baseline): one.baseline for one in runs if one.baseline is not None}
    lines: Lines = {f"Baseline: {words}": ("y", value) for words, value in list(known.items())[:2]}
    axis = f"{name.capitalize()} on public test examples"
    return _plot(_curves(runs, lambda row: row[name]), axis, spelt=spelt, lines=lines)


def spent(runs: Sequence[Shown]) -> Plot:
    """Draw the epsilon of all runs, and the ends of their budgets."""
    curves = [
        Curve(name=one.name, points=((0.0, 0.0), *_points(one, lambda row: row["epsilon"])), style=place)
        for place, one in enumerate(runs)
    ]
    budgets = sorted({one.budget for one in runs if one.budget is not None})
    lines: dict[str, tuple[Literal["x", "y"], float]] = {
        f"budget {epsilon_text(value)}": ("y", value) for value in budgets[:3]
    }
    end = _spent_at(runs[0]) if len(runs) == 1 else None
    if end is not None:
        lines[f"the budget ends: round {count(end)}"] = "x", float(end)
    return _plot(curves, "Epsilon spent, at most", lines=lines)


def _spent_at(one: Shown) -> int | None:
    """The last round: the last planned one, or that in which a silo's budget ran out before."""
    if one.budget is None or one.kind != "silos":
        return one.planned
    found = next((row["round"] + 1 for row in one.rounds if row["epsilon"] >= 0.999 * one.budget), None)
    return found if found is not None else one.planned


def planned_noise(shown: Sequence[Shown]) -> list[list[str]]:
    """List cohort, noise and clip of each run, or from which number to which they go."""
    rows = []
    for one in shown:
        planned = [[step[key] for step in one.schedule] for key in ("cohort", "noise_multiplier")]
        used = [[row[key] for row in one.rounds if row[key] is not None] for key in ("clip_norm", "noise_std")]
        if any([*planned, *used]):
            rows.append([one.name, count(one.planned), *map(_from_to, [*planned, *used])])
    return rows


def _from_to(values: Sequence[float]) -> str:
    return " \u2013 ".join(map(number, dict.fromkeys((min(values), max(values))))) if values else UNKNOWN


def diagnosed(runs: Sequence[Shown], key: str, axis: str) -> Plot | None:
    """Draw one diagnostic of simulations, if it was ever more than zero."""
    curves = _curves(runs, _seen(key))
    if not any(value for one in curves for _, value in one.points):
        return None
    share = key == "fraction_clipped"
    return _plot(curves, axis, spelt=percent if share else number, log=not share)


def norms(one: Shown) -> Plot:
    """Draw the norms of a simulation's contributions against the clip."""
    curves = [Curve(name=name, points=_points(one, _seen("norms", at)), style=at) for at, name in _QUANTILES.items()]
    return _plot([*curves, Curve(name="clip", points=_points(one, lambda row: row["clip_norm"]))], "Norm", log=True)


def _curves(runs: Sequence[Shown], value: Value) -> list[Curve]:
    return [Curve(name=one.name, points=_points(one, value), style=place) for place, one in enumerate(runs)]


def _points(one: Shown, value: Value) -> tuple[tuple[float, float], ...]:
    found = ((row["round"] + 1.0, value(row)) for row in one.rounds)
    return tuple((at, measured) for at, measured in found if measured is not None)


def _seen(key: str, at: int | None = None) -> Value:
    def seen(row: Any) -> float | None:
        found: Any = (row["simulation"] or {}).get(key)
        value = found if at is None or found is None else found[at]
        return None if value is None else float(value)

    return seen
