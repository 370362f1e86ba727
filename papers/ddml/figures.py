"""Figures 2, 3 and 4 of Pihur et al. (2018): their curves, measured, and which of the paper's statements hold."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.pictures import axes, dress, files, kinds, shades
from harness.results import Finding
from harness.seeds import Entry
from papers.ddml.study import BATCHING, PER_DEVICE, STRATEGIES, Case, Study

INSTANCES = (1, 2, 5, 10, 20, 30, 50, 100)
BATCHES = (100, 200, 400, 1_000, 10_000)
"""In examples, as the paper's figure has to be read: 100 are the updates of 10 devices. 10 are k = 1."""

IN_FLIGHT = (1, 10, 100, 1_000)

PRIVACY = (3, 5, 8, 16, 32)
"""Epsilon is the logarithm of these."""

CLOSE = 0.01
"""Curves overlap if their accuracies differ by no more in the second half."""

SLIGHT = 0.05
"""An accuracy lower by no more than this is no substantial impact."""

THOUSAND = 1_000

ONE_COLUMN = 5
"""A legend of more curves has two."""

SIMULATION = "SIMULATION: seeded"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure as measured: panels of curves, and the findings.

    The first so many curves of a panel may be `references`, what others are compared with: they are drawn in black.
    """

    name: str
    panels: Mapping[str, Sequence[Entry]]
    findings: Sequence[Finding]
    references: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain data; a curve that is in several panels is in each."""
        panels = [{"title": title, "series": list(series)} for title, series in self.panels.items()]
        return {"figure": self.name, "panels": panels, "findings": [one.to_json() for one in self.findings]}

    def plot(self, folder: Path) -> list[str]:
        """A row a panel, loss to the left, accuracy to the right; gives the names of the files."""
        paths, named = files(folder, self.name), None
        with axes(*paths, columns=2, rows=len(self.panels), height=2.7) as panels:
            for (title, series), left, right in zip(self.panels.items(), panels[::2], panels[1::2], strict=True):
                names = [one["label"] for one in series]
                for one, look in zip(series, looks(series, references=self.references.get(title, 0)), strict=True):
                    passed = [examples / THOUSAND for examples in one["examples"]]
                    left.plot(passed, one["loss"], **look)
                    right.plot(passed, one["accuracy"], label=None if names == named else one["label"], **look)
                dress(left, y="loss, training examples", title=title)
                many = 1 + (len(series) > ONE_COLUMN)
                dress(right, y="accuracy, test examples", title=SIMULATION, loc="lower right", ncols=many)
                named = names  # said once where all panels have the same curves
            for column in (panels[::2], panels[1::2]):
                for panel in column[1:]:
                    panel.sharey(column[0])
                for panel in column[:-1]:
                    panel.sharex(column[-1])
                    panel.tick_params(labelbottom=False)
                column[0].autoscale(axis="y")
                column[0].locator_params(axis="y", nbins=5)
                column[-1].set_xlabel("thousand examples read")
        return [str(path) for path in paths]


def figure2(study: Study) -> Figure:
    """The number of instances; batches on the server; the privacy of an update."""
    instances = study.curves([Case(label=f"k = {k}", instances=k) for k in INSTANCES])
    batches = study.curves(
        [Case(label=f"batches of {n:,}", instances=n // PER_DEVICE, strategy=BATCHING) for n in BATCHES]
    )
    privacy = study.curves([Case(label=f"epsilon = log {e}", epsilon=math.log(e)) for e in PRIVACY])
    by_k = dict(zip(INSTANCES, instances, strict=True))
    by_batch = dict(zip(BATCHES, batches, strict=True))
    quiet = {**by_k[10], "label": "no noise"}
    return Figure(
        name="ddml-figure2",
        panels={
            "instances, no noise": instances,
            "batches on the server, no noise": [by_k[10], by_k[20], *batches],
            "privacy of an update, k = 10": [quiet, *privacy],
        },
        references={"batches on the server, no noise": 2, "privacy of an update, k = 10": 1},
        findings=[
            _ordered("more instances learn more slowly (k = 1 is best)", instances),
            _overlap("k = 10 and batches of 100 examples (10 devices) overlap", by_k[10], by_batch[100], study),
            _overlap("k = 20 and batches of 20^2 = 400 examples (40 devices) overlap", by_k[20], by_batch[400], study),
            _overlap("not stated: k = 20 and batches of 20 devices (200 examples) do", by_k[20], by_batch[200], study),
            _above("k = 10 is better than batches of more than 10^2", by_k[10], [by_batch[n] for n in BATCHES[1:]]),
            _impact(
                "no substantial impact of privacy at epsilon = log 16", quiet, privacy[PRIVACY.index(16)], slight=True
            ),
            _impact("some impact of privacy at epsilon = log 3", quiet, privacy[PRIVACY.index(3)], slight=False),
        ],
    )


def figure3(study: Study, *, instances: int = 20, epsilon: float = math.log(16)) -> Figure:
    """What a server may do with an update; the paper without noise, and beside it with noise and with stale draws."""
    quiet = strategies(study, instances=instances)
    noisy = strategies(study, instances=instances, epsilon=epsilon)
    stale = study.curves([Case(label=f"{c:,} in flight", instances=instances, in_flight=c) for c in IN_FLIGHT])
    return Figure(
        name="ddml-figure3",
        panels={
            f"k = {instances}, no noise": list(quiet.values()),
            f"k = {instances}, epsilon = log {math.exp(epsilon):.3g}": list(noisy.values()),
            f"k = {instances}, devices in flight, no noise": stale,
        },
        findings=[*_equalities(quiet, study), _noise_tells(noisy), _staleness(stale)],
    )


def figure4(study: Study, *, instances: Sequence[int] = (5, 10, 20, 50), learning_rate: float = 1e-4) -> Figure:
    """The same for other numbers of instances, with a learning rate that is ten times smaller."""
    alone = study.curve(Case(label="k = 1", instances=1, learning_rate=learning_rate))
    by_instances = {k: strategies(study, instances=k, learning_rate=learning_rate) for k in instances}
    faster = study.curve(Case(label=f"k = {instances[-1]}, ten times the learning rate", instances=instances[-1]))
    gaps = [alone["accuracy"][-1] - by_instances[k]["draw and discard"]["accuracy"][-1] for k in instances]
    findings = [one for k in instances for one in _equalities(by_instances[k], study, prefix=f"k = {k}: ")]
    findings.append(
        Finding(
            statement="a learning rate ten times smaller: k = 1 leaves draw and discard behind, more so for larger k",
            measured="; ".join(f"k = {k}: {gap:.4f}" for k, gap in zip(instances, gaps, strict=True)),
            agrees=gaps == sorted(gaps) and gaps[-1] > SLIGHT,
        )
    )
    findings.append(
        Finding(
            statement="the learning rate matters more than the number of instances",
            measured=f"{faster['label']}: {faster['accuracy'][-1]:.4f}; k = 1: {alone['accuracy'][-1]:.4f}",
            agrees=faster["accuracy"][-1] > alone["accuracy"][-1],
        )
    )
    panels = {f"k = {k}, learning rate {learning_rate:g}": [alone, *by_instances[k].values()] for k in instances}
    return Figure(name="ddml-figure4", panels=panels, findings=findings, references=dict.fromkeys(panels, 1))


def looks(series: Sequence[Entry], *, references: int = 0) -> list[dict[str, Any]]:
    """How each curve is drawn: references black, strategies in colours, numbers of one strategy from dark to light."""
    black = [{"color": "black", "linestyle": line} for line in ("--", ":")][:references]
    rest = series[references:]
    ordered = len({one["strategy"] for one in rest}) == 1
    return [*black, *(shades(len(rest)) if ordered else kinds(len(rest)))]


def strategies(study: Study, *, instances: int, **given: Any) -> dict[str, Entry]:
    """A curve for each strategy."""
    cases = [Case(label=name, strategy=name, instances=instances, **given) for name in STRATEGIES]
    return dict(zip(STRATEGIES, study.curves(cases), strict=True))


def _equalities(curves: Mapping[str, Entry], study: Study, *, prefix: str = "") -> list[Finding]:
    ours = curves["draw and discard"]
    return [
        _overlap(f"{prefix}draw and discard equals accepting one in k", ours, curves["accept one in k"], study),
        _overlap(f"{prefix}draw and discard equals replacing the same instance", ours, curves["same instance"], study),
        _above(f"{prefix}averaging is worse", ours, [curves["draw and discard, averaged"]]),
        _above(f"{prefix}averaging the same instance is worse", ours, [curves["same instance, averaged"]]),
    ]


def _noise_tells(curves: Mapping[str, Entry]) -> Finding:
    """Without noise the strategies are alike; with noise, k independent instances average theirs away."""
    ours, same = curves["draw and discard"]["accuracy"][-1], curves["same instance"]["accuracy"][-1]
    return Finding(
        statement="draw and discard performs as well or better than the others (stated without noise): with noise, too",
        measured=f"draw and discard {ours:.4f}, same instance {same:.4f}, and averaged "
        f"{curves['draw and discard, averaged']['accuracy'][-1]:.4f}",
        agrees=ours >= max(one["accuracy"][-1] for one in curves.values()) - CLOSE,
    )


def _staleness(series: Sequence[Entry]) -> Finding:
    """The paper takes updates one by one; in production, many devices learn at the same time."""
    final = [one["accuracy"][-1] for one in series]
    measured = ", ".join(f"{one['label']} {accuracy:.4f}" for one, accuracy in zip(series, final, strict=True))
    statement = "asynchronous learning loses nothing (not measured there): as good with many devices in flight"
    return Finding(statement=statement, measured=measured, agrees=max(final) - min(final) <= CLOSE)


def _overlap(statement: str, one: Entry, other: Entry, study: Study) -> Finding:
    """Judged in the second half: before, the random starts of the instances are still seen."""
    gaps = [abs(mine - theirs) for mine, theirs in zip(one["accuracy"], other["accuracy"], strict=True)]
    after = [
        max(gap for gap, moment in zip(gaps, study.moments, strict=True) if moment >= since)
        for since in (study.devices, study.updates / 2)
    ]
    measured = f"accuracies differ by at most {after[0]:.4f} after the first pass, {after[1]:.4f} in the second half"
    return Finding(statement=statement, measured=measured, agrees=after[1] <= CLOSE)


def _above(statement: str, one: Entry, others: Sequence[Entry]) -> Finding:
    final = [series["accuracy"][-1] for series in (one, *others)]
    names = [series["label"] for series in (one, *others)]
    measured = ", ".join(f"{name} {accuracy:.4f}" for name, accuracy in zip(names, final, strict=True))
    return Finding(statement=statement, measured=measured, agrees=all(final[0] > other for other in final[1:]))


def _ordered(statement: str, series: Sequence[Entry]) -> Finding:
    final = [one["accuracy"][-1] for one in series]
    measured = ", ".join(f"{one['label']} {accuracy:.4f}" for one, accuracy in zip(series, final, strict=True))
    return Finding(statement=statement, measured=measured, agrees=final == sorted(final, reverse=True))


def _impact(statement: str, quiet: Entry, noisy: Entry, *, slight: bool) -> Finding:
    loss = quiet["accuracy"][-1] - noisy["accuracy"][-1]
    measured = f"accuracy {quiet['accuracy'][-1]:.4f} without noise, {noisy['accuracy'][-1]:.4f} with it"
    return Finding(statement=statement, measured=measured, agrees=(loss <= SLIGHT) == slight)
