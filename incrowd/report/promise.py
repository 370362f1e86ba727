"""The result and the promise, first: how good, how private, against whom, and what that means for one person."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from incrowd.privacy.statement import guess
from incrowd.report.charts import Axis, Line, Series, legend, line_chart
from incrowd.report.figure import figure, plain_table
from incrowd.report.pictures import Bar, bars, guesses
from incrowd.report.shown import Shown
from incrowd.report.svg import NOTHING, Markup, joined, tag, text
from incrowd.report.words import Words

_PICTURES = 4
_TRADED = 6


def result(shown: Sequence[Shown], words: Words) -> Markup:
    """How good and how private, at a glance: cards for one run, a row each for several."""
    warnings = joined(_warning(words, one, alone=len(shown) == 1) for one in shown)
    if len(shown) == 1:
        return warnings + _cards(shown[0], words)
    headings = [words(key) for key in ("run", "data", "accuracy", "baseline", "epsilon", "delta", "protected", "state")]
    return warnings + plain_table(
        headings, [_row(one, words) for one in shown], name=words.plain("result"), kind="runs"
    )


def meaning(shown: Sequence[Shown], words: Words) -> Markup:
    """What the promise is worth: a hundred guesses, errors traded for each other, and both in words."""
    known = [one for one in shown if one.epsilon is not None and not (one.kind == "search" and one.epsilon == 0)]
    if not known:
        return NOTHING
    pictures = _odds(known, words)
    return joined(
        [
            *(_in_words(one, words) for one in known[:1] if len(shown) == 1),
            tag("div", pictures, _traded(known, words), class_="pair"),
        ]
    )


def caveats(shown: Sequence[Shown], words: Words) -> Markup:
    """All that the statements say beside their figures, and their own words."""
    parts = []
    for one in shown:
        statements = _alike(one.promises)
        for parties, promise in statements:
            name = ", ".join([one.name] * (len(shown) > 1) + [party for party in parties if party])
            parts.append(_statement(words, promise, name=name if len(shown) > 1 or len(statements) > 1 else ""))
    if not parts:
        return tag("p", words("statement.later"), class_="quiet") if any(not one.over for one in shown) else NOTHING
    return joined(parts)


def accuracy_of(shown: Shown, words: Words) -> tuple[str, str]:
    """How good the model is, and what that is: accuracy, or else loss, of the result or of the last round measured."""
    best = (shown.search or {}).get("best") or {}
    for source in (shown.result, best, *reversed(shown.rounds)):
        if source.get("accuracy") is not None:
            return words.percent(source["accuracy"]), words.plain("accuracy")
        if source.get("loss") is not None:
            return words.number(source["loss"]), words.plain("loss")
    public = (shown.pool or {}).get("public") or {}
    if public.get("value") is not None:
        return words.number(float(public["value"])), words.plain("on_public")
    return "–", words.plain("accuracy")


def state_of(shown: Shown, words: Words) -> str:
    """How far it is."""
    if shown.kind == "pool":
        return words.plain("state.pool", accepted=words.count((shown.pool or {}).get("accepted")))
    if shown.kind in ("ledger",):
        return words.plain("state.ledger", entries=words.count(sum(len(one["lines"]) for one in shown.ledgers)))
    if shown.over:
        return words.plain("state.over")
    if shown.planned is None:
        return words.plain("state.running")
    return words.plain("state.rounds", done=words.count(len(shown.rounds)), planned=words.count(shown.planned))


def trusted(shown: Shown, words: Words) -> str:
    """Who is trusted, in a word or two."""
    if shown.kind == "pool" or shown.settings.get("privacy", {}).get("place") == "local":
        return words.plain("trusted.nobody")
    return words.plain("trusted.silo" if shown.kind == "silos" else "trusted.server")


def worst_of(shown: Shown) -> tuple[float, float]:
    """The weakest promise of a run: the largest epsilon of any party, and its delta."""
    each = [(one["epsilon"], one["delta"]) for one in shown.promises.values() if one.get("epsilon") is not None]
    return max(each, default=(shown.epsilon or 0.0, shown.delta or 0.0))


def _warning(words: Words, one: Shown, *, alone: bool) -> Markup:
    said = []
    if one.simulated:
        said.append(words("warn.simulated"))
    if one.public:
        said.append(words("warn.public"))
    if not one.over and one.kind in ("clients", "silos", "search"):
        said.append(words("warn.running"))
    if not said:
        return NOTHING
    name = NOTHING if alone else tag("strong", text(f"{one.name}: "))
    return tag("div", name, joined(tag("p", each) for each in said), class_="warning", role="note")


def _cards(one: Shown, words: Words) -> Markup:
    value, what = accuracy_of(one, words)
    cards = []
    if value != "–":
        beside = (
            words("baseline.is", value=words.percent(one.baseline))
            if one.baseline is not None
            else text(one.result.get("test_set") or "")
        )
        cards.append(_card(text(what), value, beside))
    if one.epsilon is not None:
        budget = NOTHING if one.budget is None else words("of_budget", budget=words.epsilon(one.budget))
        delta = words("delta_is", delta=words.number(one.delta)) if one.delta else words("delta_none")
        spent = words("epsilon.by_now" if not one.over and one.kind in ("clients", "silos") else "epsilon.is")
        cards.append(
            _card(spent, f"ε = {words.epsilon(one.epsilon)}", joined([delta, Markup(" · " if budget else ""), budget]))
        )
    cards.append(_card(words("protected"), words.unit(one.unit), _of_how_many(one, words)))
    cards.append(_card(words("trusted"), trusted(one, words), words(f"trusted.why.{_place(one)}")))
    return tag("div", *cards, class_="cards") + tag("p", text(state_of(one, words)), class_="quiet state")


def _card(name: Markup, value: str, beside: Markup) -> Markup:
    return tag(
        "div", tag("h3", name), tag("p", text(value), class_="big"), tag("p", beside, class_="quiet"), class_="card"
    )


def _of_how_many(one: Shown, words: Words) -> Markup:
    if one.clients is None:
        return words(f"kind.{one.kind}")
    return words("of_silos" if one.kind == "silos" else "of_clients", count=words.count(one.clients))


def _place(one: Shown) -> str:
    if one.kind == "pool":
        return "device"
    if one.settings.get("privacy", {}).get("place") == "local":
        return "local"
    return "silo" if one.kind == "silos" else "server"


def _row(one: Shown, words: Words) -> list[Markup]:
    value, what = accuracy_of(one, words)
    said = value if what == words.plain("accuracy") or value == "–" else f"{value} ({what})"
    cells = [one.name, one.data, said, words.percent(one.baseline), words.epsilon(one.epsilon), words.number(one.delta)]
    return [*map(text, cells), text(words.unit(one.unit)), text(state_of(one, words))]


def _in_words(one: Shown, words: Words) -> Markup:
    epsilon, delta = worst_of(one)
    share = guess(epsilon, delta)
    question = words.plain(f"question.{_relation(one)}", one=words.unit(one.unit))
    kept = "strong" if share <= 0.55 else "good" if share <= 0.75 else "some" if share <= 0.95 else "weak"
    found = min(1.0, math.exp(min(epsilon, 700.0)) * 0.01 + delta, 1 - math.exp(-epsilon) * (0.99 - delta))
    return joined(
        [
            tag("p", words("odds.words", question=question, odds=words.odds(share)), class_="lead"),
            tag("p", words(f"odds.{kept}")),
            tag("p", words("traded.words", found=words.odds(found))),
        ]
    )


def _relation(one: Shown) -> str:
    promise: Mapping[str, Any] = next(iter(one.promises.values()), {})
    return (
        {"replace one": "replace", "zero out one": "zero"}.get(promise.get("relation", ""), "took_part")
        if one.kind != "pool"
        else "replace"
    )


def _odds(known: Sequence[Shown], words: Words) -> Markup:
    """A picture of a hundred guesses for each run, or a bar each where they are many."""
    if len(known) > _PICTURES:
        given = [_bar(one, words) for one in known]
        chart = bars(given, name=words.plain("odds.title"), line=(0.5, words.plain("odds.coin")), most=1.0)
        return figure(words, key="odds", title=words.plain("odds.title"), about=words.plain("odds.about"), chart=chart)
    drawn = []
    for one in known:
        share = guess(*worst_of(one))
        right = math.ceil(100 * share - 1e-9)
        said = words.plain("odds.picture", right=right)
        name = tag("p", text(one.name), class_="name") if len(known) > 1 else NOTHING
        drawn.append(tag("div", name, guesses(right, name=said), tag("p", text(said), class_="quiet"), class_="crowd"))
    key = tag(
        "ul",
        *(
            tag("li", tag("span", class_=f"chip {kind}"), words(f"odds.key.{kind}"))
            for kind in ("chance", "sure", "wrong")
        ),
        class_="legend",
    )
    return figure(
        words,
        key="odds",
        title=words.plain("odds.title"),
        about=words.plain("odds.about"),
        more=key,
        chart=tag("div", *drawn, class_="crowds"),
    )


def _bar(one: Shown, words: Words) -> Bar:
    share = guess(*worst_of(one))
    return Bar(name=one.name, value=share, said=words.odds(share))


def _traded(known: Sequence[Shown], words: Words) -> Markup:
    """Errors traded for each other: the least share of those who took part that is missed, for each false alarm."""
    named: dict[tuple[float, float], list[str]] = {}
    for one in known:
        named.setdefault(worst_of(one), []).append(one.name)
    series = [
        Series(name=_of_promise(words, at, names if len(known) > 1 else []), points=_curve(*at), style=place)
        for place, (at, names) in enumerate(sorted(named.items())[:_TRADED])
    ]
    share = Axis(label=words.plain("traded.x"), spelt=lambda value: words.percent(value, 0), low=0.0, high=1.0)
    missed = Axis(label=words.plain("traded.y"), spelt=lambda value: words.percent(value, 0), low=0.0, high=1.0)
    coin = Series(name=words.plain("odds.coin"), points=[(0.0, 1.0), (1.0, 0.0)], style=6)
    chart = line_chart(
        [*series, coin], x=share, y=missed, lines=[Line(label="", x=0.01)], name=words.plain("traded.title")
    )
    return figure(
        words,
        key="traded",
        title=words.plain("traded.title"),
        about=words.plain("traded.about"),
        more=legend([*series, coin]),
        chart=chart,
    )


def _curve(epsilon: float, delta: float) -> list[tuple[float, float]]:
    places = [0.0, *(place / 60 for place in range(1, 60)), 1.0]
    corner = (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))
    return [(place, missed(place, epsilon, delta)) for place in sorted({*places, corner})]


def missed(alarms: float, epsilon: float, delta: float) -> float:
    """The least share of members that a test misses which takes so large a share of others for members."""
    grown = math.exp(min(epsilon, 700.0))
    return max(0.0, 1 - delta - grown * alarms, (1 - delta - alarms) / grown)


def _of_promise(words: Words, at: tuple[float, float], names: Sequence[str]) -> str:
    delta = f", δ = {words.number(at[1])}" if at[1] else ""
    said = f"ε = {words.epsilon(at[0])}{delta}"
    return f"{', '.join(names[:3])}{'…' if len(names) > 3 else ''}: {said}" if names else said


def _alike(promises: Mapping[str, Mapping[str, Any]]) -> list[tuple[list[str], Mapping[str, Any]]]:
    """Parties that may claim the same, together."""
    found: dict[str, tuple[list[str], Mapping[str, Any]]] = {}
    for party, promise in promises.items():
        found.setdefault(str(promise.get("text")), ([], promise))[0].append(party)
    return list(found.values())


def _statement(words: Words, promise: Mapping[str, Any], *, name: str) -> Markup:
    head = tag("h3", text(name)) if name else NOTHING
    parts = []
    for key in ("caveats", "assumed", "not_covered"):
        points = promise.get(key) or ()
        if points:
            items = joined(tag("li", words.sentence(one)) for one in points)
            kind = "points first" if key == "caveats" else "points"
            parts.append(tag("div", tag("h4", words(f"statement.{key}")), tag("ul", items), class_=kind))
    basis = [
        tag("p", words("statement.trust", trust=words.plain("statement.colon")), words.sentence(promise["trust"]))
        if promise.get("trust")
        else NOTHING,
        tag(
            "p",
            words("statement.accountant", accountant=promise.get("accountant", ""), sampler=promise.get("sampler", "")),
        )
        if promise.get("accountant")
        else NOTHING,
    ]
    original = tag(
        "details", tag("summary", words("statement.original")), tag("pre", text(promise.get("text", "")), lang="en")
    )
    return tag("div", head, tag("div", *parts, class_="columns"), *basis, original, class_="statement")
