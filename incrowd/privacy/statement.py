"""The statement that goes with every result: what it promises, and what weakens it."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from decimal import ROUND_CEILING, Context
from textwrap import fill
from typing import TYPE_CHECKING, Any

from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Relation

if TYPE_CHECKING:
    from incrowd.privacy.ledger.ledger import Ledger

FORMAT = "incrowd statement 1"

RELATIONS = {
    Relation.ADD_OR_REMOVE_ONE: "add or remove one",
    Relation.REPLACE_ONE: "replace one",
    Relation.REPLACE_SPECIAL: "zero out one",
}

QUESTIONS = {
    Relation.ADD_OR_REMOVE_ONE: "whether one {unit} took part",
    Relation.REPLACE_ONE: "which of two values one {unit} had",
    Relation.REPLACE_SPECIAL: "whether one {unit} contributed or left its place empty (how many there are is public)",
}

CENTRAL_TRUST = "the server is trusted to clip, to add the noise and to keep single contributions to itself"

LOCAL_TRUST = "nobody is trusted: every client clips and adds noise before anything leaves it"

SILO_TRUST = (
    "each silo is trusted with its own records, to clip and to add the noise; nobody else is, since all that leaves a "
    "silo is noised already"
)

SUMS_TRUST = (
    "each silo is trusted with its own records, to draw its batches and to clip; the server is trusted to add the "
    "noise and to keep the sums of single silos to itself"
)

SHARED_TRUST = (
    "no server is trusted: each party masks what it sends, so that only the sum of all is known, and adds a share of "
    "the noise; the promise holds against the server, the network and up to {colluders} of {parties} parties together"
)

TRUST = {
    ("client", "server"): CENTRAL_TRUST,
    ("client", "party"): LOCAL_TRUST,
    ("record", "party"): SILO_TRUST,
    ("record", "server"): SUMS_TRUST,
    ("client", "parties"): SHARED_TRUST,
    ("record", "parties"): SHARED_TRUST,
}
"""Who is trusted, by the unit of protection and by who adds the noise."""

SHARED_ASSUMED = (
    "the promise is computational: nobody breaks AES-256, nor X25519 together with ML-KEM-768; each party compared the "
    "roster's fingerprint with the others; the finite precision counts once for each party that is listed"
)

MORE_COLLUDERS = (
    "if more than {colluders} parties collude with a server that lists them with one other party, they know more of "
    "the noise, and what is left has a larger epsilon (number of colluding parties, epsilon): {prices}"
)

LIARS = (
    "a party's clip is its own rule: under masks a party that lies can move the model without bound, and learns "
    "nothing of the others by it"
)

UNCHANGED = "the code that ran is this code, unchanged"

FINITE = "the finite precision of the noise adds at most 2^-42 to epsilon and 2^-61 to delta for each number released"

ALWAYS_ASSUMED = (
    UNCHANGED,
    "a client takes part under one identity: who holds several is protected once for each",
    FINITE,
)

RECORDS_ASSUMED = (
    UNCHANGED,
    "the number of records that a silo states is public, and none of its data but what is charged to its ledger",
    "a person is one record of one silo: who is behind several records is protected once for each",
    "gradients in float32 are those of each record by itself: what a matrix product rounds is not covered",
    FINITE,
)

ALWAYS_UNCOVERED = (
    "what a party reveals outside this run, and other runs on the same data unless they share its ledger",
    "other data of the same people that share neither whole rows nor all features with these, or only rows that many "
    "people have: they are not recognised, and have a ledger of their own unless they are given the same name",
    "timing, traffic and the fact of being enrolled",
    "choices made by looking at private results of earlier runs",
)

SIMULATION = "SIMULATION: the random numbers come from a seed, so whoever knows it can remove the noise"

SHARED = "epsilon is that of the whole ledger, which also holds {others} charges of other runs on the same data"

FORGOTTEN = "the ledger was kept in memory only: what other runs spent on the same data is not in epsilon"

PUBLIC = (
    "the data are declared public, so that nobody in them is protected: each run on them has a ledger of its own, and "
    "what others spent is not in epsilon"
)

RELEASED = (
    "data of the same people were released without privacy before: no epsilon bounds what that told of them, and this "
    "epsilon does not contain it"
)

AFRESH = (
    "a deliberate fresh start: what was spent on the same data before (epsilon: {spent}, as far as it is known) is not "
    "in epsilon"
)

UNNUMBERED = (  # an earlier version allowed it, and its ledgers say so
    "contributions came without their clients' numbers: that each was of this round's cohort, and came once, was the "
    "duty of whoever ran this code, and is not checked"
)

OTHER_UNIT = (
    "{others} charges of the ledger are of runs that protect one {other}, not one {unit}: what these tell of a {unit} "
    "is not in epsilon"
)

DIVISION = "the data name the {unit}: there is {division}"

SOME_TRUST = "the promise holds against up to {against} parties together, who share the noise"

OTHER_TRUST = "for the other charges of the ledger, {trust}"

THIRD_PARTY = "third-party code, tried on made-up input and not verified: {parts}"

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
        """The statement as plain JSON data, of a stated version."""
        return {"format": FORMAT} | asdict(self) | {"relation": RELATIONS[self.relation], "text": self.text()}

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> "Statement":
        """What `to_json` wrote; a text that says something else than the facts is refused."""
        if form.get("format") != FORMAT:
            raise ConfigError(field="format", value=form.get("format"), remedy=f"this incrowd reads {FORMAT!r}")
        facts = {name: form[name] for name in (each.name for each in fields(cls))}
        lists = {name: tuple(facts[name]) for name in ("assumed", "not_covered", "caveats")}
        relation = next(each for each, words in RELATIONS.items() if words == facts["relation"])
        statement = cls(**facts | lists | {"relation": relation})
        if statement.text() != form["text"]:
            raise ConfigError(field="text", value=form["text"], remedy="it is not what the facts say: trust neither")
        return statement

    def text(self) -> str:
        """The statement in words."""
        most = rounded_up(100 * guess(self.epsilon, self.delta))
        promise = (
            f"All that was released is, together, ({rounded_up(self.epsilon)}, {self.delta:g})-differentially private "
            f"({RELATIONS[self.relation]} {self.unit}). In other words: someone who knows all about everyone else, "
            f"sees everything that was released and has to say {QUESTIONS[self.relation].format(unit=self.unit)}, "
            f"even odds to begin with, is right at most {most} % of the time."
        )
        basis = f"Accountant: {self.accountant}, an upper bound. Sampling: {self.sampler}. Trust: {self.trust}."
        sections = [fill(promise, 100), fill(basis, 100)]
        sections += _listed("Read this first", self.caveats)
        sections += _listed("Assumed, and not checked", self.assumed)
        sections += _listed("Not covered", self.not_covered)
        return "\n".join(sections)


@dataclass(frozen=True, kw_only=True)
class Claims:
    """The claims of a run: one statement a party, told apart because they protect different things.

    Guarantee: no statement is left out, and none is shown under another's name; parties that may claim the same are
    named together.
    """

    by_party: Mapping[str, Statement]

    def to_json(self) -> dict[str, object]:
        """The claims as plain JSON data."""
        return {party: statement.to_json() for party, statement in self.by_party.items()} | {"text": self.text()}

    def text(self) -> str:
        """The claims in words."""
        parties: dict[str, list[str]] = {}
        for party, statement in self.by_party.items():
            parties.setdefault(statement.text(), []).append(party)
        alone = "They are separate promises: none of them follows from another, and they do not add up to one.\n"
        claims = [f"{', '.join(names)} may claim:\n{text}" for text, names in parties.items()]
        return "\n\n".join([alone.strip()] * (len(claims) > 1) + claims)


def stated(
    ledger: "Ledger",
    *,
    unit: str,
    trust: str,
    sampler: str,
    own: int,
    caveats: tuple[str, ...] = (),
    assumed: tuple[str, ...] = ALWAYS_ASSUMED,
) -> Statement:
    """The statement for all that was charged to a ledger, of which `own` charges are the run's that is described.

    Guarantee: figures and relation are the ledger's. One charge whose noise came from a seed marks the whole statement;
    so do a ledger in memory, data that are declared public or were released before, and a fresh start. Epsilon contains
    the charges of other runs, and the statement mentions them. It also repeats the notes of all charges: contributions
    without numbers, a clip that is not private, third-party code, another unit, a server that is trusted.
    """
    spent, (charged, simulated) = ledger.spent(), ledger.charges()
    others, division = charged - own, ledger.data_identity.division
    marks = (
        SIMULATION if simulated else None,
        None if ledger.kept else FORGOTTEN,
        PUBLIC if ledger.data_identity.public else None,
        RELEASED if ledger.data_identity.released else None,
        AFRESH.format(spent=", ".join(_known(each.epsilon) for each in ledger.forgets)) if ledger.forgets else None,
        SHARED.format(others=others) if others > 0 else None,
    )
    return Statement(
        unit=unit,
        relation=ledger.relation,
        trust=trust,
        epsilon=spent.epsilon,
        delta=ledger.budget.delta,
        accountant=spent.accountant,
        sampler=sampler,
        assumed=(*assumed, DIVISION.format(unit=unit, division=division)) if " for each " in division else assumed,
        caveats=tuple(
            dict.fromkeys(
                (*(mark for mark in marks if mark is not None), *caveats, *_noted(ledger, unit=unit, trust=trust))
            )
        ),
    )


def of_shares(parties: int, colluders: int, price: Callable[[float], float]) -> tuple[str, ...]:
    """The caveats of shared noise; `price` is that of the noise times a factor.

    The server chooses the list: beside more colluders than planned, one honest party has the least of the noise.
    """
    more = sorted({each for each in (parties // 2, 2 * parties // 3, parties - 1) if each > colluders})
    prices = "; ".join(f"{each}, {rounded_up(price(math.sqrt(1 / (each + 1 - colluders))))}" for each in more)
    return (*((MORE_COLLUDERS.format(colluders=colluders, prices=prices),) if more else ()), LIARS)


def _known(epsilon: float | None) -> str:
    return "unknown" if epsilon is None else rounded_up(epsilon)


def _noted(ledger: "Ledger", *, unit: str, trust: str) -> list[str]:
    """The notes of a ledger's charges that a statement for all of them must not leave out."""
    notes = [entry.content()["note"] for entry in ledger.entries() if entry.kind == "charge"]
    units = Counter(note.get("unit", unit) for note in notes)
    marks = [
        OTHER_UNIT.format(others=others, other=other, unit=unit)
        for other, others in sorted(units.items())
        if other != unit
    ]
    if any(note.get("numbered") is False for note in notes):
        marks.append(UNNUMBERED)
    if any(note.get("private") is False for note in notes):
        marks.append(MEDIAN)
    if parts := sorted({note["third_party"] for note in notes if "third_party" in note}):
        marks.append(THIRD_PARTY.format(parts=", ".join(parts)))
    noised_by = {note.get("noise_by", note.get("place")) for note in notes}  # "place" is in older ledgers
    if trust not in (CENTRAL_TRUST, SUMS_TRUST) and noised_by & {"server", "central"}:
        marks.append(OTHER_TRUST.format(trust=CENTRAL_TRUST))
    against = sorted(
        {note["against"] for note in notes if "against" in note and f"to {note['against']} p" not in trust}
    )
    marks += [OTHER_TRUST.format(trust=SOME_TRUST.format(against=each)) for each in against]
    return marks


def guess(epsilon: float, delta: float) -> float:
    """The best chance of telling two equally likely neighbours apart: (e^epsilon + delta) / (1 + e^epsilon)."""
    odds = math.exp(-epsilon)
    return min(1.0, (1 + delta * odds) / (1 + odds))


def rounded_up(value: float) -> str:
    """A number in four digits that is never below the number, as a promise has to be read."""
    return f"{float(Context(prec=4, rounding=ROUND_CEILING).create_decimal_from_float(value)):g}"


def _listed(title: str, points: tuple[str, ...]) -> list[str]:
    if not points:
        return []
    return [f"{title}:", *(fill(point, 100, initial_indent="- ", subsequent_indent="  ") for point in points)]
