"""Figures of runs: how good the model is and what it has cost, round by round, over one seed or several.

Runs whose settings are the same but for their seeds are one curve: their mean, and how far they are from it. The title
says of which data they are and what is promised; a line shows how good a model is that has learned nothing.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.privacy.statement import rounded_up
from incrowd.runs.contents import shown_settings
from incrowd.runs.database import Record
from incrowd.runs.folder import database_in, settings_in, summary_in
from incrowd.runs.plots import axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours that the colour-blind can tell apart (Okabe and Ito)."""

_GREY = "#666666"
_MARKED = 40  # so many points can be told apart
_NEAR = 0.2  # an axis that would begin so near to 0 begins there
_BARS = 12  # more than so many bars are a band


@dataclass(frozen=True, kw_only=True)
class RunCurve:
    """What a figure shows of one run. All of it may be handed on (`incrowd.runs.contents`)."""

    records: Sequence[Record]
    settings: Mapping[str, Any]
    seeds: tuple[Any, ...]
    data: str
    clients: int
    epsilon: float
    delta: float
    simulated: bool
    baseline: float | None

    @classmethod
    def of(cls, settings: Mapping[str, Any], summary: Mapping[str, Any], records: Sequence[Record]) -> "RunCurve":
        """The curve of what `settings_in` gives, what the run came to, and its rounds."""
        config = settings["config"]
        shown = {name: values for name, values in shown_settings(config).items() if name != "run"}
        return cls(
            records=[record for record in records if not record.lost],
            settings={f"{name}.{key}": value for name, values in shown.items() for key, value in values.items()},
            seeds=(config["run"]["seed"], config["data"].get("seed")),
            data=summary["data"],
            clients=summary["clients"],
            epsilon=summary["epsilon"],
            delta=summary["delta"],
            simulated=summary["simulated"],
            baseline=baseline(summary),
        )

    @classmethod
    def read(cls, folder: Path) -> "RunCurve":
        """The curve of the run in a folder. Edge cases: one that is not over: `ConfigError`."""
        settings, summary = settings_in(folder), summary_in(folder)
        with database_in(folder) as database:
            return cls.of(settings, summary, database.rounds())

    @property
    def what(self) -> str:
        """What was measured."""
        return "accuracy" if any(record.accuracy is not None for record in self.records) else "loss"


def plot_runs(path: Path, curves: Sequence[RunCurve]) -> None:
    """How good the models are and what they cost, over the rounds: a curve for all runs that differ by seeds alone.

    Guarantee: the mean and the sample's standard deviation are over the runs, in the rounds that all of them measured.

    Edge cases: no run, the same seed twice, runs of which some have an accuracy and some have not: `ConfigError`.
    """
    groups = _grouped(curves)
    names = _names(groups)
    what = curves[0].what
    with axes(path, columns=2, height=3.4) as (left, right):
        for place, (name, group) in enumerate(zip(names, groups, strict=True)):
            colour = COLOURS[place % len(COLOURS)]
            _draw(left, _over_rounds(group, what), colour, name)
            _draw(right, _over_rounds(group, "epsilon", start=0.0), colour, name)
        _draw_baselines(left, curves, what)
        _finish(left, f"{what} on the test set", curves)
        _finish(right, "ε spent, at most" if len(curves) == 1 else "ε spent by a run, at most", curves)
        right.set_ylim(bottom=0)
        if what == "accuracy":
            left.set_ylim(*_sensible(left.dataLim.y0, left.dataLim.y1))
        _tell_apart(left)
        figure = left.get_figure()
        assert figure is not None  # noqa: S101 - it was made for these axes
        figure.suptitle(_title(curves), fontsize="medium")


def _grouped(curves: Sequence[RunCurve]) -> list[list[RunCurve]]:
    """The runs that differ by their seeds alone, side by side, in the order in which they came."""
    if not curves:
        raise ConfigError(field="runs", value=[], remedy="name the folder of at least one run")
    if len({curve.what for curve in curves}) > 1:
        remedy = "some have an accuracy and some a loss alone: draw them in two figures"
        raise ConfigError(field="runs", value=sorted({curve.what for curve in curves}), remedy=remedy)
    groups: dict[str, list[RunCurve]] = defaultdict(list)
    for curve in curves:
        group = groups[repr(sorted(curve.settings.items()))]
        if curve.seeds[0] is not None and any(curve.seeds == other.seeds for other in group):
            remedy = "two of the runs are the same, settings and seed: leave one out, or it counts twice"
            raise ConfigError(field="run.seed", value=curve.seeds[0], remedy=remedy)
        group.append(curve)
    return list(groups.values())


def _names(groups: Sequence[Sequence[RunCurve]]) -> list[str | None]:
    """What tells each group from the others, and how many runs it is; None where there is nothing to say."""
    each = [group[0].settings for group in groups]
    keys = [key for key in dict.fromkeys(key for one in each for key in one) if _differs(one.get(key) for one in each)]
    return [_name(group, keys) for group in groups]


def _differs(values: Any) -> bool:
    return len({repr(value) for value in values}) > 1


def _name(group: Sequence[RunCurve], keys: Sequence[str]) -> str | None:
    settings = group[0].settings
    words = [f"{_short(key)} = {_said(settings.get(key))}" for key in keys]
    if len(group) > 1:
        words.append(f"mean of {len(group)} runs ± 1 standard deviation")
    return ", ".join(words) or None


def _short(key: str) -> str:
    """A setting's name; privacy's own need no section before them."""
    return {"privacy.epsilon": "ε", "privacy.delta": "δ"}.get(key) or key.removeprefix("privacy.").replace("_", " ")


def _said(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


@dataclass(frozen=True)
class _Points:
    """Where a curve goes."""

    rounds: Sequence[int]
    mean: Floats
    spread: Floats | None


def _over_rounds(group: Sequence[RunCurve], what: str, *, start: float | None = None) -> _Points:
    """Mean and spread over the runs that differ by their seeds; with a `start` before the first round."""
    each = [
        ({} if start is None else {0: start})
        | {r.round + 1: getattr(r, what) for r in curve.records if getattr(r, what) is not None}
        for curve in group
    ]
    rounds = sorted(set.intersection(*(set(one) for one in each)))
    table = np.array([[one[number] for number in rounds] for one in each], np.float64).reshape(len(each), len(rounds))
    spread = table.std(axis=0, ddof=1) if len(each) > 1 and np.ptp(table, axis=0).any() else None
    return _Points(rounds, table.mean(axis=0), spread)


def _draw(panel: "Axes", points: _Points, colour: str, name: str | None) -> None:
    marker = "o" if len(points.rounds) <= _MARKED else None
    line: dict[str, Any] = {"color": colour, "label": name, "marker": marker, "markersize": 3.5, "linewidth": 1.5}
    if points.spread is not None and len(points.rounds) <= _BARS:
        panel.errorbar(points.rounds, points.mean, yerr=points.spread, capsize=3, **line)
        return
    panel.plot(points.rounds, points.mean, **line)
    if points.spread is not None:
        low, high = points.mean - points.spread, points.mean + points.spread
        panel.fill_between(points.rounds, low, high, color=colour, alpha=0.2, linewidth=0)


def _draw_baselines(panel: "Axes", curves: Sequence[RunCurve], what: str) -> None:
    """How good it is to say always the same."""
    known = sorted({round(curve.baseline, 4) for curve in curves if curve.baseline is not None})
    always = "always the most frequent class" if what == "accuracy" else "always the mean"
    for value in known:
        panel.axhline(value, color=_GREY, linestyle="--", linewidth=1.2, label=f"{always}: {value:.3g}")


def _finish(panel: "Axes", label: str, curves: Sequence[RunCurve]) -> None:
    last = max((record.round + 1 for curve in curves for record in curve.records), default=1)
    panel.set_xlim(0, last * 1.02)
    panel.locator_params(axis="x", integer=True)
    panel.set_xlabel("rounds")
    panel.set_ylabel(label)
    panel.grid(visible=True, alpha=0.25)
    panel.set_axisbelow(True)


def _tell_apart(panel: "Axes") -> None:
    """Say what is what: curves in their order, what they are compared with last."""
    found = list(zip(*panel.get_legend_handles_labels(), strict=True))
    found.sort(key=lambda one: one[1].startswith("always "))
    if found:
        panel.legend(*zip(*found, strict=True), fontsize="small")


def _sensible(low: float, high: float) -> tuple[float, float]:
    """Limits for shares: whole tenths around what is drawn, and a little room; from 0 where that is not far."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return 0.0, 1.0
    bottom, top = math.floor(10 * low) / 10, math.ceil(10 * high) / 10
    return 0.0 if bottom <= _NEAR else bottom, min(max(top, bottom + 0.1), 1.0) + 0.01


def _title(curves: Sequence[RunCurve]) -> str:
    """Of which data, what is promised to whom, and whether it is a simulation; what differs is in the legend."""
    first = curves[0]
    units = {curve.settings.get("privacy.unit", "client") for curve in curves}
    words = []
    if not _differs(curve.data for curve in curves):
        words.append(first.data)
    if not _differs(curve.clients for curve in curves):
        words.append(f"{first.clients} {'silos' if units == {'record'} else 'clients'}")
    if not _differs(repr(curve.settings.get("privacy.epsilon")) for curve in curves):
        words.append(f"ε = {rounded_up(max(curve.epsilon for curve in curves))}")
    if not _differs(curve.delta for curve in curves):
        words.append(f"δ = {_power(first.delta)}")
    if len(units) == 1:
        words.append(f"for one {min(units)}" + (", each run by itself" if len(curves) > 1 else ""))
    title = ", ".join(words)
    return f"{title}\nSIMULATION: seeded noise" if any(curve.simulated for curve in curves) else title


def _power(value: float) -> str:
    """A number, as a power of ten where it is one."""
    exponent = round(math.log10(value)) if value > 0 else 0
    if exponent >= -1 or not math.isclose(value, 10.0**exponent):
        return f"{value:g}"
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def baseline(summary: Mapping[str, Any]) -> float | None:
    """The score of the model that has learned nothing, in what is drawn."""
    metrics = summary["metrics"] or {}
    found: Mapping[str, Any] = metrics.get("baseline") or {}
    if summary["accuracy"] is not None:
        accuracy = found.get("accuracy")
        return None if accuracy is None else float(accuracy)
    if found.get("mse") is None or not metrics.get("mse") or summary["loss"] is None:
        return None
    share = summary["loss"] / metrics["mse"]  # of the squared loss half
    return float(share * found["mse"]) if math.isclose(share, 0.5, rel_tol=1e-3) else None
