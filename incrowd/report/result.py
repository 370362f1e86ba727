"""The result and the promise at a glance: how good, how private, and who has to be trusted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from incrowd.report import numbers
from incrowd.report.figure import plain_table
from incrowd.report.numbers import UNKNOWN
from incrowd.report.plain import Shown, ShownFacts
from incrowd.report.svg import NOTHING, Markup, joined, tag

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
_SHARES = ("accuracy", "balanced_accuracy")


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
        return numbers.percent(value) if self.measure in _SHARES else numbers.number(value)


def result(shown: Sequence[Shown]) -> Markup:
    """How good and how private: cards for one run, a row each for several."""
    warnings = _warnings(shown)
    if len(shown) == 1:
        return warnings + _cards(shown[0])
    headings = ("Run", "Data", "How good", "Baseline", "Epsilon", "Delta", "Protected", "State")
    return warnings + plain_table(headings, [_row(one) for one in shown], name="Result", kind="runs")


def score_of(shown: Shown) -> Headline | None:
    """How good the model is: the run's own verdict, or else the result's or the last round's accuracy or loss."""
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


def one_of(unit: str) -> str:
    """One of the unit that is protected."""
    return "one released number" if unit == "number" else f"one {unit}"


def _named_unit(one: Shown) -> str:
    """One of the unit, with the name that a table has for it."""
    named = (one.settings.get("data") or {}).get("client")
    return f"one client (one {named})" if named and one.unit == "client" else one_of(one.unit)


def _verdict(shown: Shown) -> Mapping[str, Any]:
    found = shown.result.get("verdict")
    return found if isinstance(found, Mapping) else {}


def _warnings(shown: Sequence[Shown]) -> Markup:
    """What weakens the promise or the result, first; runs that share a warning share its paragraph."""
    told: dict[tuple[str, ...], list[str]] = {}
    for one in shown:
        running = not one.over and one.kind in ("clients", "silos", "search")
        marks = [_SIMULATED] * one.simulated + [_PUBLIC] * one.public + [_RUNNING] * running
        told.setdefault((*marks, *_advice(one)), []).append(one.name)
    parts = []
    for sentences, names in told.items():
        if sentences:
            of = tag("p", tag("strong", ", ".join(names))) if len(shown) > 1 else NOTHING
            parts.append(tag("div", of, *(tag("p", each) for each in sentences), class_="warning", role="note"))
    return joined(parts)


def _advice(one: Shown) -> list[str]:
    """The sentences of the run's verdict: what is wrong with the model, and what to change."""
    advice = _verdict(one).get("advice") or ()
    return [advice] if isinstance(advice, str) else [str(each) for each in advice]


def _cards(one: Shown) -> Markup:
    cards = []
    score = score_of(one)
    if score is not None:
        cards.append(_card(score.name, score.text, _measured_on(one, score)))
    if one.epsilon is not None:
        delta = "without exception (δ = 0)" if one.delta == 0 else f"but for a chance δ = {numbers.number(one.delta)}"
        budget = "" if one.budget is None else f" · budget {numbers.epsilon(one.budget)}"
        by_now = " by now" if not one.over and one.kind in ("clients", "silos") else ""
        cards.append(_card(f"Privacy loss{by_now}, at most", f"ε = {numbers.epsilon(one.epsilon)}", delta + budget))
    cards.append(_card("Protected", _named_unit(one), _of_how_many(one)))
    cards.append(_card("Trusted", *_TRUSTED[_place(one)]))
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
    return f"{'in' if one.unit == 'record' else 'of'} {numbers.count(one.clients)} " + (
        "silos" if one.unit == "record" else "clients"
    )


def _place(one: Shown) -> str:
    if one.kind == "pool":
        return "device"
    privacy: ShownFacts = one.settings.get("privacy", {})
    return "silo" if one.kind == "silos" else "local" if privacy.get("noise_by") == "party" else "server"


def _row(one: Shown) -> list[str]:
    score = score_of(one)
    good, baseline = UNKNOWN, UNKNOWN
    if score is not None:
        good = score.text if score.measure == "accuracy" else f"{score.text} ({score.name})"
        baseline = score.spelt(score.baseline)
    price = [numbers.epsilon(one.epsilon), numbers.number(one.delta)]
    return [one.name, one.data, good, baseline, *price, one_of(one.unit), _state(one)]


def _state(shown: Shown) -> str:
    """How far it is."""
    if shown.kind == "pool":
        return f"{numbers.count((shown.pool or {}).get('accepted'))} contributions were accepted."
    if shown.kind == "ledger":
        return f"The ledger has {numbers.count(sum(len(one['lines']) for one in shown.ledgers))} lines."
    if shown.over:
        return "The comparison is over." if shown.kind == "search" else "The run is over."
    if shown.planned is None:
        return "It is not over."
    return f"After {numbers.count(len(shown.rounds))} of {numbers.count(shown.planned)} rounds."
