"""Figures over the rounds: accuracy, epsilon with the end of the budget, and the noise."""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from incrowd.report.markup import (
    NOTHING,
    UNKNOWN,
    Markup,
    count,
    epsilon_text,
    folded,
    joined,
    number,
    percent,
    plain_table,
    tag,
)
from incrowd.report.shown import Shown
from incrowd.runs.plots import COLOURS, picture

Spot = tuple[float, float]
Value = Callable[[Any], float | None]

ROWS = 100
"""The table behind a figure has at most this many rows, at even distances."""

_DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A named curve. `style` selects its colour and dash: a run has the same in every figure."""

    name: str
    points: tuple[Spot, ...]
    style: int = 0


@dataclass(frozen=True, kw_only=True)
class GuideLine:
    """A labelled straight line at `x` or at `y`."""

    label: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, kw_only=True)
class RoundFigure:
    """A figure over the rounds."""

    key: str
    title: str
    about: str
    axis: str
    spelt: Callable[[float], str] = number
    log: bool = False

    def drawn(self, curves: Sequence[Curve], *, lines: Sequence[GuideLine] = ()) -> Markup:
        """Draw the figure, with its values in a folded table; without matplotlib the table alone."""
        known = tuple(one for one in curves if one.points)
        shown = NOTHING
        if find_spec("matplotlib") is not None:
            content = base64.b64encode(_drawn(self.axis, known, tuple(lines), log=self.log)).decode()
            shown = tag("img", src=f"data:image/png;base64,{content}", alt=f"{self.title}. {self.about}")
        behind = folded("Values as a table", self._table(known), class_="behind")
        caption = tag("figcaption", self.title)
        return tag("figure", caption, tag("p", self.about, class_="about"), shown, behind, id=f"over-{self.key}")

    def _table(self, curves: Sequence[Curve]) -> Markup:
        each = [dict(one.points) for one in curves]
        values = sorted({value for one in each for value in one})
        kept = values[:: max(1, -(-len(values) // ROWS))]
        rows = [[count(at), *("" if at not in one else self.spelt(one[at]) for one in each)] for at in kept]
        headings = ["Rounds", *(one.name or self.axis for one in curves)]
        return plain_table(headings, rows, name="Values as a table", left_out=len(values) - len(kept))


@lru_cache(maxsize=64)
def _drawn(axis: str, curves: tuple[Curve, ...], lines: tuple[GuideLine, ...], *, log: bool) -> bytes:
    """Draw a PNG; the cache spares a live page the figures that stay."""
    with picture("png", height=3.2, dpi=110) as (panel, content):
        for one in curves:
            style, colour = _DASHES[one.style % len(_DASHES)], COLOURS[one.style % len(COLOURS)]
            marker = "o" if len(one.points) <= ROWS // 2 else None
            panel.plot(*zip(*one.points, strict=True), style, color=colour, marker=marker, markersize=3, label=one.name)
        for line in lines:
            draw, at = (panel.axvline, line.x) if line.y is None else (panel.axhline, line.y)
            draw(at or 0.0, color="#444444", linestyle="--", linewidth=1, label=line.label)
        if log:
            panel.set_yscale("log", nonpositive="mask")
        panel.locator_params(axis="x", integer=True)
        panel.set_xlabel("rounds")
        panel.set_ylabel(axis)
        panel.grid(visible=True, alpha=0.25)
        if len(curves) + len(lines) > 1:
            panel.legend(fontsize="small")
    return content.getvalue()


_MEASURED = "Measured after each round on examples that no party holds"
_ACCURACY = RoundFigure(key="accuracy", title="How good the model is", about=f"{_MEASURED}.",
                        axis="Accuracy on public test examples", spelt=percent)  # fmt: skip
_LOSS = RoundFigure(key="loss", title="How good the model is", about=f"{_MEASURED}; lower is better.",
                    axis="Loss on public test examples")  # fmt: skip
_EPSILON = RoundFigure(
    key="epsilon",
    title="What it has cost",
    about="What all rounds so far cost together, and where the budget ends. No round begins that would go beyond.",
    axis="Epsilon spent, at most",
)
_NOISES = ("Clients expected in a round", "Noise multiplier", "Clip: the largest norm that counts",
           "Standard deviation of the noise")  # fmt: skip
_DIAGNOSTICS = {
    "between_client_variance": RoundFigure(
        key="between-client-variance", title="How much clients differ (V_c)", axis="V_c: variance between clients",
        about="Variance of each weight over the cohort, before clipping, averaged over the weights.", log=True,
    ),
    "update_scale": RoundFigure(
        key="update-scale", title="How far they agree (U_s)", axis="U_s: scale of the update", log=True,
        about="Squared mean of each weight over the cohort, before clipping, averaged over the weights.",
    ),
    "noise_to_signal": RoundFigure(
        key="noise-to-signal", title="Noise against signal", axis="Noise over signal", log=True,
        about="Norm of the noise over the norm of the mean contribution, estimated from the release.",
    ),
    "fraction_clipped": RoundFigure(
        key="fraction-clipped", title="How many were clipped", axis="Contributions above the clip",
        about="Share of the contributions whose norm was above the clip.", spelt=percent,
    ),
}  # fmt: skip
_INSIDE = "Only a simulation of public data may look at single contributions. A run in earnest shows none of this."
_NORMS = "L2 norms of the contributions before clipping: the quartiles, and the largest."
_QUANTILES = {1: "first quartile", 2: "median", 3: "third quartile", 4: "largest"}


def rounds(shown: Sequence[Shown]) -> Markup:
    """Draw accuracy (or loss) and epsilon of all runs on the same axes."""
    runs = [one for one in shown if one.rounds]
    if not runs:
        return NOTHING
    lost = [(one.name, sum(row["lost"] for row in one.rounds)) for one in runs]
    notes = (
        tag("p", f"{name}: {times} rounds were paid for and then lost in a crash; nothing of them was used.",
            class_="quiet")
        for name, times in lost if times
    )  # fmt: skip
    return joined([tag("div", _measured(runs), _epsilon(runs), class_="grid"), *notes])


def noise(shown: Sequence[Shown]) -> Markup:
    """List cohort, noise and clip of each run, or from which number to which they go."""
    runs = [one for one in shown if one.schedule or any(row["noise_std"] is not None for row in one.rounds)]
    if not runs:
        return NOTHING
    rows = []
    for one in runs:
        planned = [[step[key] for step in one.schedule] for key in ("cohort", "noise_multiplier")]
        used = [[row[key] for row in one.rounds if row[key] is not None] for key in ("clip_norm", "noise_std")]
        rows.append([one.name, count(one.planned), *map(_from_to, [*planned, *used])])
    return plain_table(["Run", "Rounds", *_NOISES], rows, name="As planned before the first round")


def _from_to(values: Sequence[float]) -> str:
    return " \u2013 ".join(map(number, dict.fromkeys((min(values), max(values))))) if values else UNKNOWN


def inside(shown: Sequence[Shown]) -> Markup:
    """Draw the diagnostics of simulations of public data."""
    runs = [one for one in shown if any(row["simulation"] for row in one.rounds)]
    if not runs:
        return NOTHING
    figures = []
    for key, form in _DIAGNOSTICS.items():
        curves = _curves(runs, _seen(key))
        if any(value for one in curves for _, value in one.points):
            figures.append(form.drawn(curves))
    for place, one in enumerate(runs):
        norms = [Curve(name=name, points=_points(one, _seen("norms", at)), style=at) for at, name in _QUANTILES.items()]
        norms.append(Curve(name="clip", points=_points(one, lambda row: row["clip_norm"])))
        title = "Norms against the clip" + f" · {one.name}" * (len(runs) > 1)
        figures.append(RoundFigure(key=f"norms-{place}", title=title, about=_NORMS, axis="Norm", log=True).drawn(norms))
    return tag("p", _INSIDE, class_="warning") + tag("div", *figures, class_="grid")


def _measured(runs: Sequence[Shown]) -> Markup:
    form = _ACCURACY if any(row["accuracy"] is not None for one in runs for row in one.rounds) else _LOSS
    known = {form.spelt(one.baseline): one.baseline for one in runs if one.baseline is not None}
    lines = [GuideLine(label=f"Baseline: {spelt}", y=value) for spelt, value in list(known.items())[:2]]
    return form.drawn(_curves(runs, lambda row: row[form.key]), lines=lines)


def _epsilon(runs: Sequence[Shown]) -> Markup:
    curves = [
        Curve(name=one.name, points=((0.0, 0.0), *_points(one, lambda row: row["epsilon"])), style=place)
        for place, one in enumerate(runs)
    ]
    budgets = sorted({one.budget for one in runs if one.budget is not None})
    lines = [GuideLine(label=f"budget {epsilon_text(value)}", y=value) for value in budgets[:3]]
    end = _spent_at(runs[0]) if len(runs) == 1 else None
    if end is not None:
        lines.append(GuideLine(label=f"the budget ends: round {count(end)}", x=float(end)))
    return _EPSILON.drawn(curves, lines=lines)


def _spent_at(one: Shown) -> int | None:
    """The last round: the last planned one, or that in which a silo's budget ran out before."""
    if one.budget is None or one.kind != "silos":
        return one.planned
    found = next((row["round"] + 1 for row in one.rounds if row["epsilon"] >= 0.999 * one.budget), None)
    return found if found is not None else one.planned


def _curves(runs: Sequence[Shown], value: Value) -> list[Curve]:
    return [Curve(name=one.name, points=_points(one, value), style=place) for place, one in enumerate(runs)]


def _points(one: Shown, value: Value) -> tuple[Spot, ...]:
    found = ((row["round"] + 1.0, value(row)) for row in one.rounds)
    return tuple((at, measured) for at, measured in found if measured is not None)


def _seen(key: str, at: int | None = None) -> Value:
    def seen(row: Any) -> float | None:
        found: Any = (row["simulation"] or {}).get(key)
        value = found if at is None or found is None else found[at]
        return None if value is None else float(value)

    return seen
