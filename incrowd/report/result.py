"""The result and the promise: how good, how private, whom to trust, and what that means for one person."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from incrowd.privacy.statement import guess
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
    percent_at_most,
    plain_table,
    tag,
    typeset,
)
from incrowd.report.shown import Facts, Shown

KINDS = {
    "clients": "whole clients are protected",
    "silos": "silos, each protects its records",
    "search": "a comparison of settings",
    "pool": "draw and discard",
    "ledger": "a ledger",
}

_SIMULATED = (
    "SIMULATION: the random numbers come from a seed, so whoever knows it can remove the noise. Nobody is protected by "
    "this run; it shows what a run in earnest would promise."
)
_PUBLIC = "The data are declared public: nobody in them is protected."
_RUNNING = "It is not over: this page shows how far it has come, and no statement yet."
_TRUSTED = {
    "server": ("the server", "it clips, adds the noise and keeps contributions to itself"),
    "silo": ("each silo, for its own", "it clips and adds noise before anything leaves it"),
    "local": ("nobody", "every client clips and adds noise before anything leaves it"),
    "device": ("nobody", "the noise is added before anything leaves the device"),
}
_MEASURES = {"accuracy": "Accuracy", "balanced_accuracy": "Balanced accuracy", "auc": "AUC", "r2": "R²", "loss": "Loss"}
_BASELINES = {
    "accuracy": "always the most frequent answer",
    "balanced_accuracy": "guessing",
    "auc": "guessing",
    "r2": "always the mean",
}
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


@dataclass(frozen=True, kw_only=True)
class Headline:
    """How good a model is by one measure, with the baseline's score and one standard deviation where they are known."""

    measure: str
    value: float
    baseline: float | None = None
    std: float | None = None

    @property
    def name(self) -> str:
        """The measure as people write it."""
        return _MEASURES.get(self.measure, self.measure)

    @property
    def text(self) -> str:
        """The value, with two standard deviations where they are known."""
        return self.spelt(self.value) + ("" if self.std is None else f" ± {self.spelt(2 * self.std)}")

    def spelt(self, value: float | None) -> str:
        """A number of this measure."""
        return percent(value) if self.measure in ("accuracy", "balanced_accuracy") else number(value)


def result(shown: Sequence[Shown]) -> Markup:
    """Show how good and how private: cards for one run, a row each for several."""
    warnings = _warnings(shown)
    if len(shown) == 1:
        return warnings + _cards(shown[0])
    headings = ("Run", "Data", "How good", "Baseline", "Epsilon", "Delta", "Protected", "State")
    return warnings + plain_table(headings, [_row(one) for one in shown], name="Result", kind="runs")


def meaning(shown: Sequence[Shown]) -> Markup:
    """Explain the promise as a bet, in words for one run, and in a row each for several."""
    known = [one for one in shown if one.epsilon is not None]
    if not known:
        return NOTHING
    if len(shown) == 1:
        return _in_words(known[0])
    rows = [[one.name, percent_at_most(guess(*_worst_of(one))), _found(one)] for one in known]
    headings = ("Run", "Right guesses, at most", "Found at 1 % false alarms, at most")
    return plain_table(headings, rows, name="What an attacker may find out")


def statements(shown: Sequence[Shown]) -> Markup:
    """Show the statements, point by point and word for word; equal points are shown once."""
    alike: dict[str, list[tuple[str, Facts]]] = {}
    for one in shown:
        for party, promise in one.promises.items():
            name = ", ".join([one.name] * (len(shown) > 1) + [party] * bool(party))
            alike.setdefault(repr([promise.get(key) for key in _BESIDE]), []).append((name, promise))
    if alike:
        return joined(_statement(each, alone=len(alike) == 1) for each in alike.values())
    waiting = any(not one.over and one.kind != "pool" for one in shown)
    return tag("p", "The statement is written when the run is over.", class_="quiet") if waiting else NOTHING


def _score_of(shown: Shown) -> Headline | None:
    """The run's own verdict, or else the result's or the last round's accuracy or loss."""
    verdict = _verdict(shown)
    if verdict.get("value") is not None:
        return Headline(
            measure=str(verdict.get("measure", "accuracy")),
            value=float(verdict["value"]),
            baseline=verdict.get("baseline"),
            std=verdict.get("std"),
        )
    best = (shown.search or {}).get("best") or {}
    tested = {"accuracy": best.get("test_accuracy")}
    for source in (shown.result, tested, best, *reversed(shown.rounds)):
        for measure in ("accuracy", "loss"):
            value: float | None = source.get(measure)
            if value is not None:
                return Headline(measure=measure, value=value, baseline=shown.baseline)
    return None


def _one_of(unit: str) -> str:
    return "one released number" if unit == "number" else f"one {unit}"


def _verdict(shown: Shown) -> Mapping[str, Any]:
    found = shown.result.get("verdict")
    return found if isinstance(found, Mapping) else {}


def _warnings(shown: Sequence[Shown]) -> Markup:
    """What weakens the promise or the result; runs share the paragraph of a common warning."""
    common: dict[tuple[str, ...], list[str]] = {}
    for one in shown:
        running = not one.over and one.kind in ("clients", "silos", "search")
        marks = [_SIMULATED] * one.simulated + [_PUBLIC] * one.public + [_RUNNING] * running
        advice = _verdict(one).get("advice") or ()
        common.setdefault((*marks, *([advice] if isinstance(advice, str) else map(str, advice))), []).append(one.name)
    parts = []
    for sentences, names in common.items():
        if sentences:
            of = tag("p", tag("strong", ", ".join(names))) if len(shown) > 1 else NOTHING
            parts.append(tag("div", of, *(tag("p", each) for each in sentences), class_="warning", role="note"))
    return joined(parts)


def _cards(one: Shown) -> Markup:
    cards = []
    score = _score_of(one)
    if score is not None:
        cards.append(_card(score.name, score.text, _measured_on(one, score)))
    if one.epsilon is not None:
        delta = "without exception (δ = 0)" if one.delta == 0 else f"but for a chance δ = {number(one.delta)}"
        budget = "" if one.budget is None else f" · budget {epsilon_text(one.budget)}"
        by_now = " by now" if not one.over and one.kind in ("clients", "silos") else ""
        cards.append(_card(f"Privacy loss{by_now}, at most", f"ε = {epsilon_text(one.epsilon)}", delta + budget))
    column = (one.settings.get("data") or {}).get("client")
    protected = f"one client (one {column})" if column and one.unit == "client" else _one_of(one.unit)
    cards.append(_card("Protected", protected, _of_how_many(one)))
    cards.append(_card("Trusted", *_TRUSTED[_noised_by(one)]))
    return tag("div", *cards, class_="cards") + tag("p", _state(one), class_="quiet state")


def _measured_on(one: Shown, score: Headline) -> str:
    if one.kind == "search":
        tested = ((one.search or {}).get("best") or {}).get("test_accuracy") is not None
        on = "test examples that had no say" if tested else "the examples that decided"
        return f"of the best of those compared, on {on}"
    if score.baseline is None:
        return ""
    baseline = _BASELINES.get(score.measure, "a model that learned nothing")
    return f"on public test examples; {baseline}: {score.spelt(score.baseline)}"


def _card(name: str, value: str, beside: str) -> Markup:
    return tag("div", tag("h3", name), tag("p", value, class_="big"), tag("p", beside, class_="quiet"), class_="card")


def _of_how_many(one: Shown) -> str:
    if one.clients is None:
        return KINDS[one.kind]
    return f"in {count(one.clients)} silos" if one.unit == "record" else f"of {count(one.clients)} clients"


def _noised_by(one: Shown) -> str:
    if one.kind == "pool":
        return "device"
    privacy: Facts = one.settings.get("privacy", {})
    return "silo" if one.kind == "silos" else "local" if privacy.get("noise_by") == "party" else "server"


def _row(one: Shown) -> list[str]:
    score = _score_of(one)
    good, baseline = UNKNOWN, UNKNOWN
    if score is not None:
        good = score.text if score.measure == "accuracy" else f"{score.text} ({score.name})"
        baseline = score.spelt(score.baseline)
    price = [epsilon_text(one.epsilon), number(one.delta)]
    return [one.name, one.data, good, baseline, *price, _one_of(one.unit), _state(one)]


def _state(shown: Shown) -> str:
    if shown.kind == "pool":
        return f"{count((shown.pool or {}).get('accepted'))} contributions were accepted."
    if shown.kind == "ledger":
        return f"The ledger has {count(sum(len(one['lines']) for one in shown.ledgers))} lines."
    if shown.over:
        return "The comparison is over." if shown.kind == "search" else "The run is over."
    if shown.planned is None:
        return "It is not over."
    return f"After {count(len(shown.rounds))} of {count(shown.planned)} rounds."


def _worst_of(shown: Shown) -> tuple[float, float]:
    """The largest epsilon of any party, and its delta."""
    each = [(one["epsilon"], one["delta"]) for one in shown.promises.values() if one.get("epsilon") is not None]
    return max(each, default=(shown.epsilon or 0.0, shown.delta or 0.0))


def _in_words(one: Shown) -> Markup:
    share, relation, unit = guess(*_worst_of(one)), _relation(one), _one_of(one.unit)
    question = {
        "replace one": f"which of two possible values {unit} had",
        "zero out one": f"whether {unit} contributed or left its place empty",
    }.get(relation, f"whether {unit} took part")
    lead = (
        f"Someone who knows everything about everyone else, sees all that was released and has to say {question}, is "
        f"right at most {percent_at_most(share)} of the time. Tossing a coin is right 50 % of the time."
    )
    words = tag("p", lead, class_="lead") + tag("p", next(words for most, words in _STRENGTHS if share <= most))
    if relation == "replace one":
        return words
    accused = "If the attacker may accuse 1 % of those who did not take part, at most"
    return words + tag("p", f"{accused} {_found(one)} of those who did are found.")


def _relation(one: Shown) -> str:
    promise: Facts = next(iter(one.promises.values()), {})
    return "replace one" if one.kind == "pool" else str(promise.get("relation", ""))


def found_at_most(epsilon: float, delta: float) -> float:
    """The largest share of participants that any test finds at 1 % false alarms."""
    return max(0.0, min(1.0, math.exp(min(epsilon, 700.0)) * 0.01 + delta, 1 - math.exp(-epsilon) * (0.99 - delta)))


def _found(one: Shown) -> str:
    return UNKNOWN if _relation(one) == "replace one" else percent_at_most(found_at_most(*_worst_of(one)))


def _statement(alike: Sequence[tuple[str, Facts]], *, alone: bool) -> Markup:
    """Show a statement, or several that differ in nothing but their figures."""
    _, promise = alike[0]
    names, several = [name for name, _ in alike if name], len(alike) > 1
    head = tag("h3", _listed(names)) if names and (several or not alone) else NOTHING
    points = []
    for key, title in _POINTS.items():
        if promise.get(key):
            items = joined(tag("li", typeset(one)) for one in promise[key])
            kind = "points first" if key == "caveats" else "points"
            points.append(tag("div", tag("h4" if head else "h3", title), tag("ul", items), class_=kind))
    parts = [head, tag("div", *points, class_="columns") if points else NOTHING]
    if promise.get("trust"):
        parts.append(tag("p", tag("strong", "Trust:"), " ", typeset(promise["trust"])))
    if promise.get("accountant"):
        sampling = f" Sampling: {typeset(promise['sampler'])}." if promise.get("sampler") else ""
        parts.append(tag("p", f"Accountant: {promise['accountant']}, an upper bound.{sampling}"))
    originals: dict[str, list[str]] = {}
    for name, one in alike:
        originals.setdefault(str(one.get("text", "")), []).append(name)
    own = [
        tag("pre", f"{_listed(parties)}\n\n{words}" if several else words)
        for words, parties in list(originals.items())[:_ORIGINALS]
    ]
    if len(originals) > _ORIGINALS:
        left = count(len(originals) - _ORIGINALS)
        own.append(tag("p", f"{left} more, which differ in their figures alone, are left out here."))
    original = folded("The statement itself, word for word", *own, open=not points or None)
    return tag("div", *parts, original, class_="statement")


def _listed(names: Sequence[str]) -> str:
    return ", ".join([*names[:_NAMES], *(["…"] if len(names) > _NAMES else [])])
