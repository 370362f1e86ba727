"""The promise: what it means for one person, what it assumes, what it does not cover, and the statement itself."""

import math
from collections.abc import Sequence

from incrowd.privacy.statement import guess
from incrowd.report import numbers
from incrowd.report.figure import plain_table
from incrowd.report.numbers import UNKNOWN
from incrowd.report.plain import Shown, ShownFacts
from incrowd.report.result import one_of
from incrowd.report.svg import NOTHING, Markup, joined, tag

_BESIDE = ("unit", "relation", "trust", "accountant", "sampler", "assumed", "not_covered", "caveats")
_ORIGINALS = 20
_NAMES = 12
_STRENGTHS = (
    (0.55, "That is hardly better than a coin, whatever the attacker knows or computes."),
    (0.75, "That is a strong limit, whatever the attacker knows or computes."),
    (0.95, "That limits the worst case. Real attackers know far less and do worse; the limit alone leaves them room."),
    (
        1.0,
        "By itself this limit excludes little: it allows such an all-knowing attacker to be almost sure. Real "
        "attackers know less, but that protection is not promised. A smaller epsilon promises more.",
    ),
)
_POINTS = {"caveats": "Read this first", "assumed": "Assumed, and not checked", "not_covered": "Not covered"}


def meaning(shown: Sequence[Shown]) -> Markup:
    """The promise as a bet, in words for one run, and a row each for several."""
    known = [one for one in shown if one.epsilon is not None]
    if not known:
        return NOTHING
    if len(shown) == 1:
        return _in_words(known[0])
    rows = [[one.name, numbers.percent_at_most(guess(*worst_of(one))), _found(one)] for one in known]
    headings = ("Run", "Right guesses, at most", "Found at 1 % false alarms, at most")
    return plain_table(headings, rows, name="What an attacker may find out")


def statements(shown: Sequence[Shown]) -> Markup:
    """The statements, point by point and word for word; those that differ in their figures alone share their points."""
    alike: dict[str, list[tuple[str, ShownFacts]]] = {}
    for one in shown:
        for party, promise in one.promises.items():
            name = ", ".join([one.name] * (len(shown) > 1) + [party] * bool(party))
            alike.setdefault(repr([promise.get(key) for key in _BESIDE]), []).append((name, promise))
    if alike:
        return joined(_statement(each, alone=len(alike) == 1) for each in alike.values())
    waiting = any(not one.over and one.kind != "pool" for one in shown)
    return tag("p", "The statement is written when the run is over.", class_="quiet") if waiting else NOTHING


def worst_of(shown: Shown) -> tuple[float, float]:
    """The weakest promise of a run: the largest epsilon of any party, and its delta."""
    each = [(one["epsilon"], one["delta"]) for one in shown.promises.values() if one.get("epsilon") is not None]
    return max(each, default=(shown.epsilon or 0.0, shown.delta or 0.0))


def _in_words(one: Shown) -> Markup:
    epsilon, delta = worst_of(one)
    share, relation, unit = guess(epsilon, delta), _relation(one), one_of(one.unit)
    question = {
        "replace one": f"which of two possible values {unit} had",
        "zero out one": f"whether {unit} contributed or left its place empty",
    }.get(relation, f"whether {unit} took part")
    lead = (
        f"Someone who knows everything about everyone else, sees all that was released and has to say {question}, is "
        f"right at most {numbers.percent_at_most(share)} of the time. Tossing a coin is right 50 % of the time."
    )
    said = tag("p", lead, class_="lead") + tag("p", next(said for most, said in _STRENGTHS if share <= most))
    if relation == "replace one":
        return said
    accused = "If the attacker may accuse 1 % of those who did not take part, at most"
    return said + tag("p", f"{accused} {_found(one)} of those who did are found.")


def _relation(one: Shown) -> str:
    promise: ShownFacts = next(iter(one.promises.values()), {})
    return "replace one" if one.kind == "pool" else str(promise.get("relation", ""))


def found_at_most(epsilon: float, delta: float) -> float:
    """The largest share of participants that any test finds at 1 % false alarms."""
    return max(0.0, min(1.0, math.exp(min(epsilon, 700.0)) * 0.01 + delta, 1 - math.exp(-epsilon) * (0.99 - delta)))


def _found(one: Shown) -> str:
    return UNKNOWN if _relation(one) == "replace one" else numbers.percent_at_most(found_at_most(*worst_of(one)))


def _statement(alike: Sequence[tuple[str, ShownFacts]], *, alone: bool) -> Markup:
    """A statement, or several that differ in nothing but their figures."""
    _, promise = alike[0]
    names, several = [name for name, _ in alike if name], len(alike) > 1
    head = tag("h3", _listed(names)) if names and (several or not alone) else NOTHING
    points = []
    for key, title in _POINTS.items():
        if promise.get(key):
            items = joined(tag("li", numbers.typeset(one)) for one in promise[key])
            kind = "points first" if key == "caveats" else "points"
            points.append(tag("div", tag("h4" if head else "h3", title), tag("ul", items), class_=kind))
    parts = [head, tag("div", *points, class_="columns") if points else NOTHING]
    if promise.get("trust"):
        parts.append(tag("p", tag("strong", "Trust:"), " ", numbers.typeset(promise["trust"])))
    if promise.get("accountant"):
        sampling = f" Sampling: {numbers.typeset(promise['sampler'])}." if promise.get("sampler") else ""
        parts.append(tag("p", f"Accountant: {promise['accountant']}, an upper bound.{sampling}"))
    originals: dict[str, list[str]] = {}
    for name, one in alike:
        originals.setdefault(str(one.get("text", "")), []).append(name)
    own = [
        tag("pre", f"{_listed(parties)}\n\n{said}" if several else said)
        for said, parties in list(originals.items())[:_ORIGINALS]
    ]
    if len(originals) > _ORIGINALS:
        left = numbers.count(len(originals) - _ORIGINALS)
        own.append(tag("p", f"{left} more, which differ in their figures alone, are left out here."))
    summary = tag("summary", "The statement itself, word for word")
    return tag("div", *parts, tag("details", summary, *own, open=not points or None), class_="statement")


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:_NAMES], *(["…"] if len(names) > _NAMES else [])])
