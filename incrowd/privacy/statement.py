"""What is promised, to whom, and what is not: the statement that goes with every result."""

import math
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Context
from textwrap import fill

from incrowd.privacy.accounting import Relation

RELATIONS = {
    Relation.ADD_OR_REMOVE_ONE: "add or remove one",
    Relation.REPLACE_ONE: "replace one",
    Relation.REPLACE_SPECIAL: "replace one by a null record",
}

QUESTIONS = {
    Relation.ADD_OR_REMOVE_ONE: "whether one {unit} took part",
    Relation.REPLACE_ONE: "which of two values one {unit} had",
    Relation.REPLACE_SPECIAL: "whether one {unit} had anything to say",
}

CENTRAL_TRUST = "the server is trusted to clip, to add the noise and to keep single contributions to itself"

LOCAL_TRUST = "nobody is trusted: every client clips and adds noise before anything leaves it"

ALWAYS_ASSUMED = (
    "the code that ran is this code, unchanged",
    "a client takes part under one identity: who holds several is protected once for each",
    "the finite precision of the noise adds at most 2^-42 to epsilon and 2^-61 to delta for each number released",
)

ALWAYS_UNCOVERED = (
    "what a party reveals outside this run, and other runs on the same data unless they share its ledger",
    "timing, traffic and the fact of being enrolled",
    "choices made by looking at private results of earlier runs",
)

SIMULATION = "SIMULATION: the random numbers come from a seed, so whoever knows it can remove the noise"

MEDIAN = "the median is not private, and its leakage is not in epsilon"


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A guarantee in full: rule by rule what is protected, from whom, how much, and under which assumptions.

    Guarantee: text and JSON hold the same facts, all of them; nothing that weakens the promise is left out of either.
    """

    unit: str
    relation: Relation
    trust: str
    epsilon: float
    delta: float
    accountant: str
    sampler: str
    assumed: tuple[str, ...] = ALWAYS_ASSUMED
    not_covered: tuple[str, ...] = ALWAYS_UNCOVERED
    caveats: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The statement as plain JSON data."""
        return asdict(self) | {"relation": RELATIONS[self.relation], "text": self.text()}

    def attack(self) -> float:
        """The best chance of telling two equally likely neighbours apart: (e^epsilon + delta) / (1 + e^epsilon)."""
        odds = math.exp(-self.epsilon)
        return min(1.0, (1 + self.delta * odds) / (1 + odds))

    def text(self) -> str:
        """The statement in words."""
        promise = (
            f"All that was released is, together, ({rounded_up(self.epsilon)}, {self.delta:g})-differentially private "
            f"({RELATIONS[self.relation]} {self.unit}). In other words: someone who knows all about everyone else, "
            f"sees everything that was released and has to say {QUESTIONS[self.relation].format(unit=self.unit)}, "
            f"even odds to begin with, is right at most {rounded_up(100 * self.attack())} % of the time."
        )
        basis = f"Accountant: {self.accountant}, an upper bound. Sampling: {self.sampler}. Trust: {self.trust}."
        sections = [fill(promise, 100), fill(basis, 100)]
        sections += _listed("Read this first", self.caveats)
        sections += _listed("Assumed, and not checked", self.assumed)
        sections += _listed("Not covered", self.not_covered)
        return "\n".join(sections)


def rounded_up(value: float) -> str:
    """A number in four digits that is never below the number, as a promise has to be read."""
    return f"{float(Context(prec=4, rounding=ROUND_CEILING).create_decimal_from_float(value)):g}"


def _listed(title: str, points: tuple[str, ...]) -> list[str]:
    if not points:
        return []
    return [f"{title}:", *(fill(point, 100, initial_indent="- ", subsequent_indent="  ") for point in points)]
