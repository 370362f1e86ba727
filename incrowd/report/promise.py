"""The promise: what it means for one person, what it assumes, what it does not cover, and the statement itself."""

import math
from collections.abc import Sequence

from incrowd.privacy.statement import guess
from incrowd.report import numbers
from incrowd.report.charts import ChartAxis, Series, legend, line_chart
from incrowd.report.figure import figure
from incrowd.report.pictures import NamedBar, bars, guesses
from incrowd.report.plain import Shown, ShownFacts
from incrowd.report.result import is_free, one_of
from incrowd.report.svg import NOTHING, Markup, joined, tag

_BESIDE = ("unit", "relation", "trust", "accountant", "sampler", "assumed", "not_covered", "caveats")
_PICTURES = 4
_BESIDE_EACH_OTHER = 2
_TRADED = 6
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
_ODDS = "The attacker's odds: 100 guesses"
_ODDS_ABOUT = "How many of 100 such guesses may be right at most, even odds to begin with. Rounded up."
_KEY = {"chance": "right by chance", "sure": "right beyond chance, at most", "wrong": "wrong, at least"}
_TRADE = "What no attack can beat"
_TRADE_ABOUT = (
    "An attack with few false alarms misses much. No attack is below the line; a useless one is on the diagonal."
)
_POINTS = {"caveats": "Read this first", "assumed": "Assumed, and not checked", "not_covered": "Not covered"}


def meaning(shown: Sequence[Shown]) -> Markup:
    """The promise as a bet: a hundred guesses, errors traded for each other, and both in words."""
    known = [one for one in shown if one.epsilon is not None and not is_free(one)]
    if not known:
        return NOTHING
    said = _in_words(known[0]) if len(shown) == 1 else NOTHING
    return said + tag("div", _odds(known), _traded(known), class_="grid" if len(known) > 1 else "pair")


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


def missed(alarms: float, epsilon: float, delta: float) -> float:
    """The least share of participants that any test misses, for its share of false alarms."""
    grown = math.exp(min(epsilon, 700.0))
    return max(0.0, 1 - delta - grown * alarms, (1 - delta - alarms) / grown)


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
    parts = [tag("p", lead, class_="lead"), tag("p", next(said for most, said in _STRENGTHS if share <= most))]
    if relation != "replace one":
        found = min(1.0, math.exp(min(epsilon, 700.0)) * 0.01 + delta, 1 - math.exp(-epsilon) * (0.99 - delta))
        traded = (
            "If the attacker may accuse 1 % of those who did not take part, at most "
            f"{numbers.percent_at_most(found)} of those who did are found."
        )
        parts.append(tag("p", traded))
    return joined(parts)


def _relation(one: Shown) -> str:
    promise: ShownFacts = next(iter(one.promises.values()), {})
    return "replace one" if one.kind == "pool" else str(promise.get("relation", ""))


def _odds(known: Sequence[Shown]) -> Markup:
    """A picture of a hundred guesses for each run, or a bar each where they are many."""
    shares = [(one.name, guess(*worst_of(one))) for one in known]
    if len(known) > _PICTURES:
        given = [NamedBar(name=name, value=share, said=numbers.percent_at_most(share)) for name, share in shares]
        return figure(
            key="odds",
            title=_ODDS,
            about=_ODDS_ABOUT,
            chart=bars(given, name=_ODDS, line=(0.5, "a coin"), most=1.0),
        )
    drawn = []
    for name, share in shares:
        right = math.ceil(100 * share - 1e-9)
        said = f"at most {right} of 100 guesses are right"
        head = tag("p", name, class_="name") if len(known) > 1 else NOTHING
        drawn.append(tag("div", head, guesses(right, name=said), tag("p", said, class_="quiet"), class_="crowd"))
    key = joined(tag("li", tag("span", class_=f"chip {kind}"), said) for kind, said in _KEY.items())
    return figure(
        key="odds",
        title=_ODDS,
        about=_ODDS_ABOUT,
        more=tag("ul", key, class_="legend"),
        chart=tag("div", *drawn, class_="crowds"),
        wide=len(known) > _BESIDE_EACH_OTHER,
    )


def _traded(known: Sequence[Shown]) -> Markup:
    """Errors traded for each other: the least share of participants that is missed, for each share of false alarms."""
    named: dict[tuple[float, float], list[int]] = {}
    for place, one in enumerate(known):
        named.setdefault(worst_of(one), []).append(place)
    series = [
        Series(
            name=_of_promise(at, [known[place].name for place in places] if len(known) > 1 else []),
            points=_curve(*at),
            style=places[0],  # as in the other figures
        )
        for at, places in list(named.items())[:_TRADED]
    ]
    series.append(Series(name="a coin", points=[(0.0, 1.0), (1.0, 0.0)], style=6))
    alarms, missed_axis = (
        ChartAxis(label=label, spelt=lambda value: numbers.percent(value, 0), low=0.0, high=1.0)
        for label in ("false alarms", "missed, at least")
    )
    chart = line_chart(series, x=alarms, y=missed_axis, name=_TRADE)
    return figure(key="traded", title=_TRADE, about=_TRADE_ABOUT, more=legend(series), chart=chart)


def _curve(epsilon: float, delta: float) -> list[tuple[float, float]]:
    places = [0.0, *(place / 60 for place in range(1, 60)), 1.0]
    corner = (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))
    return [(place, missed(place, epsilon, delta)) for place in sorted({*places, corner})]


def _of_promise(at: tuple[float, float], names: Sequence[str]) -> str:
    delta = f", δ = {numbers.number(at[1])}" if at[1] else ""
    said = f"ε = {numbers.epsilon(at[0])}{delta}"
    listed = f"{', '.join(names[:3])}{'…' if len(names) > 3 else ''}"
    return f"{listed}: {said}" if names else said


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
