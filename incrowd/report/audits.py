"""The audit by attack, beside the promise that it tests."""

from collections.abc import Mapping, Sequence
from typing import Any

from incrowd.report import numbers
from incrowd.report.figure import plain_table
from incrowd.report.numbers import UNKNOWN
from incrowd.report.plain import Shown
from incrowd.report.svg import NOTHING, Markup, joined, tag

_HOLDS = "Attacked in simulation, the promise held."
_BROKEN = "An attack in simulation did better than the promise allows: do not rely on it."
_FINDINGS = ("Attack", "Epsilon, at least", "Stated", "AUC", "Found at 0.1 % false alarms", "Allowed there", "Trials",
             "Holds")  # fmt: skip


def audits(shown: Sequence[Shown]) -> Markup:
    """The audit of each run that has one."""
    found = [(one, one.audit) for one in shown if one.audit]
    return joined((tag("h3", one.name) if len(found) > 1 else NOTHING) + _audit(audit) for one, audit in found)


def _audit(audit: Mapping[str, Any]) -> Markup:
    holds = audit.get("holds", True)
    summary = (
        f"Promised: epsilon {numbers.epsilon(audit.get('epsilon_claimed'))}. The attacks prove that it is at least "
        f"{numbers.number(audit.get('epsilon_lower_bound'))}, with {numbers.percent(audit.get('confidence'), 0)} "
        "confidence. An attack can show that a promise is broken; it cannot prove that one is kept."
    )
    findings = [
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
        for one in audit["findings"]
    ]
    checks = [
        [numbers.typeset(one.get("name", "")), _spelt(one.get("measured")), _spelt(one.get("stated")), _holds(one)]
        for one in audit["checks"]
    ]
    return joined(
        [
            tag("p", _HOLDS if holds else _BROKEN, class_="lead" if holds else "warning"),
            tag("p", summary),
            plain_table(_FINDINGS, findings, name="What attacks found", kind="attacks") if findings else NOTHING,
            plain_table(("Check", "Measured", "Stated", "Holds"), checks, name="Checks from the inside"),
        ]
    )


def _holds(one: Mapping[str, Any]) -> str:
    return "yes" if one.get("holds", True) else "NO"


def _spelt(value: object) -> str:
    if isinstance(value, int | float):
        return numbers.number(float(value))
    return UNKNOWN if value is None else numbers.typeset(str(value))
