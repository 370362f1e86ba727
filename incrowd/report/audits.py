"""The audit by attack, beside the promise that it tests."""

from collections.abc import Mapping, Sequence
from typing import Any

from incrowd.report import numbers
from incrowd.report.figure import figure, plain_table
from incrowd.report.numbers import UNKNOWN
from incrowd.report.pictures import NamedBar, bars
from incrowd.report.plain import Shown
from incrowd.report.svg import NOTHING, Markup, joined, tag

_FINDINGS = 16
_TITLE = "What attacks found"
_HOLDS = "Attacked in simulation, the promise held."
_BROKEN = "An attack in simulation did better than the promise allows: do not rely on it."


def audits(shown: Sequence[Shown]) -> Markup:
    """The audit of each run that has one."""
    found = [(place, one, one.audit) for place, one in enumerate(shown) if one.audit]
    return joined(
        (tag("h3", one.name) if len(found) > 1 else NOTHING) + _audit(audit, place=place) for place, one, audit in found
    )


def _audit(audit: Mapping[str, Any], *, place: int) -> Markup:
    claimed, holds = audit.get("epsilon_claimed"), audit.get("holds", True)
    summary = (
        f"Promised: epsilon {numbers.epsilon(claimed)}. The attacks prove that it is at least "
        f"{numbers.number(audit.get('epsilon_lower_bound'))}, with {numbers.percent(audit.get('confidence'), 0)} "
        "confidence. An attack can show that a promise is broken; it cannot prove that one is kept."
    )
    given = [
        NamedBar(
            name=one.get("attack", ""),
            value=one["lower_bound"],
            said=f"ε ≥ {numbers.number(one['lower_bound'])}",
            style=place,
        )
        for one in audit["findings"]
        if one.get("lower_bound") is not None
    ][:_FINDINGS]
    line = None if claimed is None else (float(claimed), f"promised {numbers.epsilon(claimed)}")
    parts = [tag("p", _HOLDS if holds else _BROKEN, class_="lead" if holds else "warning"), tag("p", summary)]
    if given:
        about = "Lower bounds on epsilon, attack by attack, beside what is promised."
        chart = bars(given, name=_TITLE, line=line)
        parts.append(tag("div", figure(key=f"audit-{place}", title=_TITLE, about=about, chart=chart), class_="grid"))
    return joined([*parts, _findings(audit["findings"]), _checks(audit["checks"])])


def _findings(findings: Sequence[Mapping[str, Any]]) -> Markup:
    if not findings:
        return NOTHING
    headings = ("Attack", "Epsilon, at least", "Stated", "AUC", "Found at 0.1 % false alarms", "Allowed there",
                "Trials", "Holds")  # fmt: skip
    rows = [
        [
            numbers.typeset(one.get("attack", "")),
            numbers.number(one.get("lower_bound")),
            numbers.epsilon(one.get("claimed")),
            numbers.number(one.get("auc")),
            numbers.percent(one.get("true_positives"), 2),
            numbers.percent(one.get("allowed"), 2),
            numbers.count(one.get("trials")),
            _holds(one),
        ]
        for one in findings
    ]
    return plain_table(headings, rows, name=_TITLE, kind="attacks")


def _checks(checks: Sequence[Mapping[str, Any]]) -> Markup:
    if not checks:
        return NOTHING
    rows = [
        [numbers.typeset(one.get("name", "")), _spelt(one.get("measured")), _spelt(one.get("stated")), _holds(one)]
        for one in checks
    ]
    return plain_table(("Check", "Measured", "Stated", "Holds"), rows, name="Checks from the inside")


def _holds(one: Mapping[str, Any]) -> str:
    return "yes" if one.get("holds", True) else "NO"


def _spelt(value: object) -> str:
    if isinstance(value, int | float):
        return numbers.number(float(value))
    return UNKNOWN if value is None else numbers.typeset(str(value))
