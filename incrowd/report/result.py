"""The result and the promise: how good, how private, whom to trust, and what that means for one person."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from incrowd.audit.bounds import allowed
from incrowd.privacy.statement import guess
from incrowd.report.numbers import count, number, percent
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
_MEASURES = {"accuracy": "Accuracy", "balanced_accuracy": "Balanced accuracy", "auc": "AUC", "r2": "R²", "loss": "Loss"}
_ALIKE = ("unit", "relation", "trust", "accountant", "sampler", "assumed", "not_covered", "caveats")


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
        return measure(self.measure, value)


def measure(name: str, value: float | None) -> str:
    """Write the value of a measure."""
    return percent(value) if name in ("accuracy", "balanced_accuracy") else number(value)


def headline(one: Shown) -> Headline | None:
    """The run's own verdict, or else the result's or the last round's accuracy or loss."""
    verdict, best = _verdict(one), (one.search or {}).get("best") or {}
    if verdict.get("value") is not None:
        name, value = str(verdict.get("measure", "accuracy")), float(verdict["value"])
        return Headline(measure=name, value=value, baseline=verdict.get("baseline"), std=verdict.get("std"))
    for source in (one.result, {"accuracy": best.get("test_accuracy")}, best, *reversed(one.rounds)):
        for name in ("accuracy", "loss"):
            found: float | None = source.get(name)
            if found is not None:
                return Headline(measure=name, value=found, baseline=one.baseline)
    return None


def one_of(unit: str) -> str:
    """Name the unit of privacy."""
    return "one released number" if unit == "number" else f"one {unit}"


def _verdict(shown: Shown) -> Mapping[str, Any]:
    found = shown.result.get("verdict")
    return found if isinstance(found, Mapping) else {}


def warnings(shown: Sequence[Shown]) -> list[tuple[list[str], tuple[str, ...]]]:
    """List the caveats of the promise and the result; runs share a common warning."""
    common: dict[tuple[str, ...], list[str]] = {}
    for one in shown:
        running = not one.over and one.kind in ("clients", "silos", "search")
        marks = [_SIMULATED] * one.simulated + [_PUBLIC] * one.public + [_RUNNING] * running
        advice = _verdict(one).get("advice") or ()
        marks += [advice] if isinstance(advice, str) else map(str, advice)
        common.setdefault(tuple(marks), []).append(one.name)
    return [(names, sentences) for sentences, names in common.items() if sentences]


def state(shown: Shown) -> str:
    """How far it has come."""
    if shown.kind == "pool":
        return f"{count((shown.pool or {}).get('accepted'))} contributions were accepted."
    if shown.kind == "ledger":
        return f"The ledger has {count(sum(len(one['lines']) for one in shown.ledgers))} lines."
    if shown.over:
        return "The comparison is over." if shown.kind == "search" else "The run is over."
    if shown.planned is None:
        return "It is not over."
    return f"After {count(len(shown.rounds))} of {count(shown.planned)} rounds."


@dataclass(frozen=True, kw_only=True)
class Odds:
    """An all-knowing attacker's shares, at most: `right` guesses, and members `found` at 1 % false alarms."""

    relation: str
    right: float
    found: float | None


def odds_of(one: Shown) -> Odds:
    """The promise of a run as a bet on one unit; the party with the largest epsilon counts."""
    each = [(its["epsilon"], its["delta"]) for its in one.promises.values() if its.get("epsilon") is not None]
    epsilon, delta = max(each, default=(one.epsilon or 0.0, one.delta or 0.0))
    promise: Facts = next(iter(one.promises.values()), {})
    relation = "replace one" if one.kind == "pool" else str(promise.get("relation", ""))
    found = None if relation == "replace one" else allowed(0.01, epsilon=epsilon, delta=delta)
    return Odds(relation=relation, right=guess(epsilon, delta), found=found)


@dataclass(frozen=True, kw_only=True)
class Statements:
    """Statements that differ in nothing but their figures: their parties, and the parties of each text."""

    parties: Sequence[str]
    promise: Facts
    originals: Sequence[tuple[str, Sequence[str]]]


def statements(shown: Sequence[Shown]) -> list[Statements]:
    """The statements of all runs and parties; equal points are shown once."""
    alike: dict[str, list[tuple[str, Facts]]] = {}
    for one in shown:
        for party, promise in one.promises.items():
            name = ", ".join([one.name] * (len(shown) > 1) + [party] * bool(party))
            alike.setdefault(repr([promise.get(key) for key in _ALIKE]), []).append((name, promise))
    found = []
    for each in alike.values():
        originals: dict[str, list[str]] = {}
        for name, promise in each:
            originals.setdefault(str(promise.get("text", "")), []).append(name)
        parties = [name for name, _ in each]
        found.append(Statements(parties=parties, promise=each[0][1], originals=list(originals.items())))
    return found
