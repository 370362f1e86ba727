"""The result and the promise, first: how good, how private, against whom, and what that means for one person."""

import math
from collections.abc import Sequence

from incrowd.privacy.statement import guess
from incrowd.report.charts import ChartAxis, Series, legend, line_chart
from incrowd.report.figure import figure, plain_table
from incrowd.report.pictures import NamedBar, bars, guesses
from incrowd.report.plain import Shown, ShownFacts
from incrowd.report.svg import NOTHING, Markup, joined, tag, text
from incrowd.report.words import UNKNOWN, Wording

_BESIDE = ("unit", "relation", "trust", "accountant", "sampler", "assumed", "not_covered", "caveats")
_PICTURES = 4
_BESIDE_EACH_OTHER = 2
_TRADED = 6
_ORIGINALS = 20
_NAMES = 12


def result(shown: Sequence[Shown], words: Wording) -> Markup:
    """How good and how private, at a glance: cards for one run, a row each for several."""
    warnings = _warnings(shown, words)
    if len(shown) == 1:
        return warnings + _cards(shown[0], words)
    keys = ("run", "data", "accuracy", "baseline", "epsilon", "delta", "protected", "state")
    rows = [_row(one, words) for one in shown]
    return warnings + plain_table([words(key) for key in keys], rows, name=words.plain("result"), kind="runs")


def meaning(shown: Sequence[Shown], words: Wording) -> Markup:
    """What the promise is worth: a hundred guesses, errors traded for each other, and both in words."""
    known = [one for one in shown if one.epsilon is not None and not _unpaid(one)]
    if not known:
        return NOTHING
    said = _in_words(known[0], words) if len(shown) == 1 else NOTHING
    pictures = tag("div", _odds(known, words), _traded(known, words), class_="grid" if len(known) > 1 else "pair")
    return said + pictures


def caveats(shown: Sequence[Shown], words: Wording) -> Markup:
    """All that the statements say beside their figures, and their own words; what several say alike is said once."""
    alike: dict[str, list[tuple[str, ShownFacts]]] = {}
    for one in shown:
        for party, promise in one.promises.items():
            name = ", ".join([one.name] * (len(shown) > 1) + [party] * bool(party))
            alike.setdefault(repr([promise.get(key) for key in _BESIDE]), []).append((name, promise))
    if alike:
        return joined(_statement(words, each, alone=len(alike) == 1) for each in alike.values())
    waiting = any(not one.over and one.kind != "pool" for one in shown)
    return tag("p", words("statement.later"), class_="quiet") if waiting else NOTHING


def accuracy_of(shown: Shown, words: Wording) -> tuple[str, str]:
    """How good the model is, and what that is: accuracy, or else loss, of the result or of the last round measured."""
    best = (shown.search or {}).get("best") or {}
    tested = {"accuracy": best.get("test_accuracy"), "loss": None}
    for source in (shown.result, tested, best, *reversed(shown.rounds)):
        if source.get("accuracy") is not None:
            return words.percent(source["accuracy"]), words.plain("accuracy")
        if source.get("loss") is not None:
            return words.number(source["loss"]), words.plain("loss")
    public = (shown.pool or {}).get("public") or {}
    if public.get("value") is not None:
        return words.number(float(public["value"])), words.plain("on_public")
    return UNKNOWN, words.plain("accuracy")


def state_of(shown: Shown, words: Wording) -> str:
    """How far it is."""
    if shown.kind == "pool":
        return words.plain("state.pool", accepted=words.count((shown.pool or {}).get("accepted")))
    if shown.kind in ("ledger",):
        return words.plain("state.ledger", entries=words.count(sum(len(one["lines"]) for one in shown.ledgers)))
    if shown.over:
        return words.plain("state.searched" if shown.kind == "search" else "state.over")
    if shown.planned is None:
        return words.plain("state.running")
    return words.plain("state.rounds", done=words.count(len(shown.rounds)), planned=words.count(shown.planned))


def trusted(shown: Shown, words: Wording) -> str:
    """Who is trusted, in a word or two."""
    if shown.kind == "pool" or shown.settings.get("privacy", {}).get("place") == "local":
        return words.plain("trusted.nobody")
    return words.plain("trusted.silo" if shown.kind == "silos" else "trusted.server")


def worst_of(shown: Shown) -> tuple[float, float]:
    """The weakest promise of a run: the largest epsilon of any party, and its delta."""
    each = [(one["epsilon"], one["delta"]) for one in shown.promises.values() if one.get("epsilon") is not None]
    return max(each, default=(shown.epsilon or 0.0, shown.delta or 0.0))


def _unpaid(one: Shown) -> bool:
    """Whether nothing was charged, so that there is no promise to speak of."""
    return one.kind == "search" and (one.search or {}).get("select") == "public"


def _warnings(shown: Sequence[Shown], words: Wording) -> Markup:
    """What weakens what is shown, first; what is true of several runs is said once."""
    told: dict[tuple[str, ...], list[str]] = {}
    for one in shown:
        running = not one.over and one.kind in ("clients", "silos", "search")
        marks = (("warn.simulated", one.simulated), ("warn.public", one.public), ("warn.running", running))
        told.setdefault(tuple(key for key, true in marks if true), []).append(one.name)
    parts = []
    for keys, names in told.items():
        if keys:
            of = tag("p", tag("strong", ", ".join(names))) if len(shown) > 1 else NOTHING
            parts.append(tag("div", of, *(tag("p", words(key)) for key in keys), class_="warning", role="note"))
    return joined(parts)


def _cards(one: Shown, words: Wording) -> Markup:
    value, what = accuracy_of(one, words)
    cards = []
    if value != UNKNOWN:
        cards.append(_card(what, value, _beside(one, words)))
    if _unpaid(one):
        cards.append(_card(words("epsilon.is"), words.plain("unpaid"), words("search.public")))
    elif one.epsilon is not None:
        beside = [words("delta_none") if one.delta == 0 else words("delta_is", delta=words.number(one.delta))]
        beside += [] if one.budget is None else [words("of_budget", budget=words.epsilon(one.budget))]
        spent = words("epsilon.by_now" if not one.over and one.kind in ("clients", "silos") else "epsilon.is")
        cards.append(_card(spent, f"ε = {words.epsilon(one.epsilon)}", _dotted(beside)))
    cards.append(_card(words("protected"), words.unit(one.unit), _of_how_many(one, words)))
    cards.append(_card(words("trusted"), trusted(one, words), words(f"trusted.why.{_place(one)}")))
    return tag("div", *cards, class_="cards") + tag("p", state_of(one, words), class_="quiet state")


def _dotted(parts: Sequence[Markup]) -> Markup:
    return joined(part if place == 0 else joined([" · ", part]) for place, part in enumerate(parts))


def _beside(one: Shown, words: Wording) -> str:
    """What the result was measured on."""
    if one.kind == "search":
        tested = ((one.search or {}).get("best") or {}).get("test_accuracy") is not None
        return words("search.tested" if tested else "search.validated")
    return words("baseline.is", value=words.percent(one.baseline)) if one.baseline is not None else NOTHING


def _card(name: str, value: str, beside: str) -> Markup:
    return tag(
        "div", tag("h3", name), tag("p", text(value), class_="big"), tag("p", beside, class_="quiet"), class_="card"
    )


def _of_how_many(one: Shown, words: Wording) -> Markup:
    if one.clients is None:
        return words(f"kind.{one.kind}")
    return words("of_silos" if one.kind == "silos" else "of_clients", count=words.count(one.clients))


def _place(one: Shown) -> str:
    if one.kind == "pool":
        return "device"
    if one.settings.get("privacy", {}).get("place") == "local":
        return "local"
    return "silo" if one.kind == "silos" else "server"


def _row(one: Shown, words: Wording) -> list[Markup]:
    value, what = accuracy_of(one, words)
    said = value if what == words.plain("accuracy") or value == UNKNOWN else f"{value} ({what})"
    cells = [one.name, one.data, said, words.percent(one.baseline), words.epsilon(one.epsilon), words.number(one.delta)]
    return [*map(text, cells), text(words.unit(one.unit)), text(state_of(one, words))]


def _in_words(one: Shown, words: Wording) -> Markup:
    epsilon, delta = worst_of(one)
    share = guess(epsilon, delta)
    question = words.plain(f"question.{_relation(one)}", one=words.unit(one.unit))
    kept = "strong" if share <= 0.55 else "good" if share <= 0.75 else "some" if share <= 0.95 else "weak"
    found = min(1.0, math.exp(min(epsilon, 700.0)) * 0.01 + delta, 1 - math.exp(-epsilon) * (0.99 - delta))
    return joined(
        [
            tag("p", words("odds.words", question=question, odds=words.odds(share)), class_="lead"),
            tag("p", words(f"odds.{kept}")),
            NOTHING if _relation(one) == "replace" else tag("p", words("traded.words", found=words.odds(found))),
        ]
    )


def _relation(one: Shown) -> str:
    promise: ShownFacts = next(iter(one.promises.values()), {})
    return (
        {"replace one": "replace", "zero out one": "zero"}.get(promise.get("relation", ""), "took_part")
        if one.kind != "pool"
        else "replace"
    )


def _odds(known: Sequence[Shown], words: Wording) -> Markup:
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
        wide=len(known) > _BESIDE_EACH_OTHER,
    )


def _bar(one: Shown, words: Wording) -> NamedBar:
    share = guess(*worst_of(one))
    return NamedBar(name=one.name, value=share, said=words.odds(share))


def _traded(known: Sequence[Shown], words: Wording) -> Markup:
    """Errors traded for each other: the least share of those who took part that is missed, for each false alarm."""
    named: dict[tuple[float, float], list[int]] = {}
    for place, one in enumerate(known):
        named.setdefault(worst_of(one), []).append(place)
    several = len(known) > 1
    series = [
        Series(
            name=_of_promise(words, at, [known[place].name for place in places] if several else []),
            points=_curve(*at),
            style=places[0],  # as in the other figures
        )
        for at, places in list(named.items())[:_TRADED]
    ]
    share = ChartAxis(label=words.plain("traded.x"), spelt=lambda value: words.percent(value, 0), low=0.0, high=1.0)
    missed = ChartAxis(label=words.plain("traded.y"), spelt=lambda value: words.percent(value, 0), low=0.0, high=1.0)
    coin = Series(name=words.plain("odds.coin"), points=[(0.0, 1.0), (1.0, 0.0)], style=6)
    chart = line_chart([*series, coin], x=share, y=missed, name=words.plain("traded.title"))
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


def _of_promise(words: Wording, at: tuple[float, float], names: Sequence[str]) -> str:
    delta = f", δ = {words.number(at[1])}" if at[1] else ""
    said = f"ε = {words.epsilon(at[0])}{delta}"
    listed = f"{', '.join(names[:3])}{'…' if len(names) > 3 else ''}"
    return words.plain("named", name=listed, value=said) if names else said


def _statement(words: Wording, alike: Sequence[tuple[str, ShownFacts]], *, alone: bool) -> Markup:
    """A statement, or several that differ in nothing but their figures."""
    _, promise = alike[0]
    names, several = [name for name, _ in alike if name], len(alike) > 1
    head = tag("h3", _listed(names)) if names and (several or not alone) else NOTHING
    parts = []
    for key in ("caveats", "assumed", "not_covered"):
        if points := promise.get(key):
            items = joined(tag("li", words.sentence(one)) for one in points)
            kind = "points first" if key == "caveats" else "points"
            parts.append(
                tag("div", tag("h4" if head else "h3", words(f"statement.{key}")), tag("ul", items), class_=kind)
            )
    basis = [NOTHING]
    if promise.get("trust"):
        basis.append(tag("p", tag("strong", words("statement.trust")), " ", words.sentence(promise["trust"])))
    if promise.get("accountant"):
        said = [words("statement.accountant", accountant=promise["accountant"])]
        if promise.get("sampler"):
            said += [words("statement.sampler"), words.sentence(promise["sampler"]) + "."]
        basis.append(tag("p", Markup(" ").join(said)))
    originals: dict[str, list[str]] = {}
    for name, one in alike:
        originals.setdefault(str(one.get("text", "")), []).append(name)
    own = [
        tag("pre", f"{_listed(parties)}\n\n{said}" if several else said, lang="en")
        for said, parties in list(originals.items())[:_ORIGINALS]
    ]
    if len(originals) > _ORIGINALS:
        own.append(tag("p", words("statements.left_out", count=words.count(len(originals) - _ORIGINALS))))
    text_itself = tag("details", tag("summary", words("statement.original")), *own, open=not parts or None)
    return tag("div", head, tag("div", *parts, class_="columns") if parts else NOTHING, *basis, text_itself,
               class_="statement")  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:_NAMES], *(["…"] if len(names) > _NAMES else [])])
