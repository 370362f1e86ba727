"""What an audit by attack found, beside what is promised."""

from collections.abc import Mapping, Sequence
from typing import Any

from incrowd.report.figure import figure, plain_table
from incrowd.report.pictures import NamedBar, bars
from incrowd.report.plain import Shown
from incrowd.report.svg import NOTHING, Markup, joined, tag, text
from incrowd.report.words import UNKNOWN, Wording

_FINDINGS = 16


def audits(shown: Sequence[Shown], words: Wording) -> Markup:
    """The audit of each run that has one."""
    found = [(place, one, one.audit) for place, one in enumerate(shown) if one.audit]
    return joined(
        (tag("h3", text(one.name)) if len(found) > 1 else NOTHING) + _audit(audit, words, place=place)
        for place, one, audit in found
    )


def _audit(audit: Mapping[str, Any], words: Wording, *, place: int) -> Markup:
    claimed, lower = audit.get("epsilon_claimed"), audit.get("epsilon_lower_bound")
    verdict = "audit.holds" if audit.get("holds", True) else "audit.broken"
    said = tag("p", words(verdict), class_="lead" if audit.get("holds", True) else "warning")
    summary = words(
        "audit.about",
        claimed=words.epsilon(claimed),
        lower=words.number(lower),
        confidence=words.percent(audit.get("confidence"), 0),
    )
    given = [
        NamedBar(
            name=words.said(one.get("attack", "")) or one.get("attack", ""),
            value=one["lower_bound"],
            said=f"ε ≥ {words.number(one['lower_bound'])}",
            style=place,
        )
        for one in audit["findings"]
        if one.get("lower_bound") is not None
    ][:_FINDINGS]
    line = None if claimed is None else (float(claimed), words.plain("audit.claimed", epsilon=words.epsilon(claimed)))
    chart = NOTHING
    if given:
        chart = figure(
            words,
            key=f"audit-{place}",
            title=words.plain("audit.title"),
            about=words.plain("audit.how"),
            chart=bars(given, name=words.plain("audit.title"), line=line),
        )
    return (
        said
        + tag("p", summary)
        + (tag("div", chart, class_="grid") if given else NOTHING)
        + _findings(audit["findings"], words)
        + _checks(audit["checks"], words)
    )


def _findings(findings: Sequence[Mapping[str, Any]], words: Wording) -> Markup:
    if not findings:
        return NOTHING
    keys = (
        "audit.attack",
        "audit.lower",
        "audit.stated",
        "audit.auc",
        "audit.found",
        "audit.allowed",
        "audit.trials",
        "audit.verdict",
    )
    rows = [
        [
            words.sentence(one.get("attack", "")),
            text(words.number(one.get("lower_bound"))),
            text(words.epsilon(one.get("claimed"))),
            text(words.number(one.get("auc"))),
            text(words.percent(one.get("true_positives"), 2)),
            text(words.percent(one.get("allowed"), 2)),
            text(words.count(one.get("trials"))),
            words("audit.yes" if one.get("holds", True) else "audit.no"),
        ]
        for one in findings
    ]
    return plain_table([words(key) for key in keys], rows, name=words.plain("audit.title"), kind="attacks")


def _checks(checks: Sequence[Mapping[str, Any]], words: Wording) -> Markup:
    if not checks:
        return NOTHING
    rows = [
        [
            words.sentence(one.get("name", "")),
            _said(one.get("measured"), words),
            _said(one.get("stated"), words),
            words("audit.yes" if one.get("holds", True) else "audit.no"),
        ]
        for one in checks
    ]
    headings = [words(key) for key in ("audit.check", "audit.measured", "audit.stated", "audit.verdict")]
    return plain_table(headings, rows, name=words.plain("audit.checks"))


def _said(value: object, words: Wording) -> Markup:
    if isinstance(value, int | float):
        return text(words.number(float(value)))
    return text(UNKNOWN) if value is None else words.sentence(str(value))
