import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent

from incrowd._random import SeededRandomness, SystemRandomness
from incrowd.errors import ConfigError
from incrowd.privacy import statement
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.content import DataIdentity
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Forgotten
from incrowd.privacy.statement import (
    ALWAYS_ASSUMED,
    ALWAYS_UNCOVERED,
    MEDIAN,
    QUESTIONS,
    RECORDS_ASSUMED,
    SILO_TRUST,
    Claims,
    Statement,
    guess,
)

STATEMENT = Statement(
    unit="client",
    relation=Relation.ADD_OR_REMOVE_ONE,
    trust="the server is trusted",
    epsilon=7.98765,
    delta=1e-5,
    accountant="PLD",
    sampler="Poisson, 220 of 1000 clients a round, 54 rounds",
    caveats=(MEDIAN,),
)


def test_json_holds_every_fact() -> None:
    """Rule 23: unit, relation, trust, epsilon, delta, accountant, sampler, assumptions, what is not covered."""
    written = json.loads(json.dumps(STATEMENT.to_json()))
    assert set(written) == {field.name for field in fields(Statement)} | {"text", "format"}
    assert written["epsilon"] == 7.98765
    assert written["relation"] == "add or remove one"


def test_a_statement_that_was_sent_is_read_back_equal_and_an_edited_one_is_refused() -> None:
    sent = json.loads(json.dumps(STATEMENT.to_json()))
    read = Statement.from_json(sent)
    assert read == STATEMENT != replace(STATEMENT, epsilon=7.0)
    with pytest.raises(ConfigError, match="not what the facts say"):
        Statement.from_json(sent | {"epsilon": 0.1})
    with pytest.raises(ConfigError, match="format = 'incrowd statement 2'"):
        Statement.from_json(sent | {"format": "incrowd statement 2"})


def test_text_says_the_same_as_the_fields() -> None:
    text = " ".join(STATEMENT.text().split())
    promises = ["(7.988, 1e-05)", "add or remove one client", "PLD", "Poisson, 220 of 1000", "the server is trusted"]
    for fact in (*promises, MEDIAN, *ALWAYS_ASSUMED, *ALWAYS_UNCOVERED, "Read this first"):
        assert fact in text
    assert "Read this first" not in replace(STATEMENT, caveats=()).text()


def test_epsilon_in_words_is_never_below_the_number() -> None:
    for epsilon in (7.98765, 7.98744, 0.00012344, 123456.0):
        shown = replace(STATEMENT, epsilon=epsilon)
        words = shown.text().split("(")[1].split(",")[0]
        assert epsilon <= float(words) <= epsilon * 1.001


def test_the_attack_in_words_is_the_one_that_epsilon_and_delta_allow() -> None:
    """Against brute force: the four-point mechanism that is exactly (epsilon, delta)-private, attacked optimally."""
    for epsilon, delta in ((0.5, 0.0), (1.0, 0.01), (8.0, 1e-3)):
        # Kairouz, Oh, Viswanath 2015: what the worst mechanism shows for one neighbour; for the other, backwards.
        share = (1 - delta) / (1 + math.exp(epsilon))
        one = [delta, math.exp(epsilon) * share, share, 0.0]
        best = sum(max(a, b) for a, b in zip(one, reversed(one), strict=True)) / 2
        assert guess(epsilon, delta) == pytest.approx(best)
    assert guess(800.0, 1e-5) == 1
    assert "is right at most 100 % of the time" in " ".join(replace(STATEMENT, epsilon=800.0).text().split())


def test_every_relation_asks_its_own_question() -> None:
    for relation, question in QUESTIONS.items():
        text = " ".join(replace(STATEMENT, relation=relation).text().split())
        assert question.format(unit="client") in text
    assert len(set(QUESTIONS.values())) == len(QUESTIONS)


RECORDS = replace(STATEMENT, unit="record", trust=SILO_TRUST, epsilon=2.0, assumed=RECORDS_ASSUMED)


def test_claims_hold_every_statement_under_its_partys_name() -> None:
    claims = Claims(by_party={"north": RECORDS, "the server": STATEMENT, "south": RECORDS})
    text = claims.text()
    assert text.index("north, south may claim:") < text.index(RECORDS.text())
    assert text.index("the server may claim:") < text.index(STATEMENT.text())
    assert text.count("may claim:") == 2
    assert "none of them follows from another" in text
    written = json.loads(json.dumps(claims.to_json()))
    assert written["south"] == json.loads(json.dumps(RECORDS.to_json()))
    assert set(written) == {"north", "the server", "south", "text"}
    assert Claims(by_party={"north": RECORDS}).text() == f"north may claim:\n{RECORDS.text()}"


def ledger_of(folder: Path, **terms: Any) -> Ledger:
    identity = {name: terms.pop(name) for name in ("public", "released") if name in terms}
    return Ledger.open(
        folder / "ledger",
        budget=Budget(epsilon=50.0, delta=1e-6),
        relation=Relation.REPLACE_ONE,
        data_identity=DataIdentity(name="patients", **identity),
        **terms,
    )


def said_of(ledger: Ledger, *charges: Mapping[str, Any], seed: bool = False, own: int | None = None) -> Statement:
    """The statement of the silo's owner after these charges, of which the last ones are its own."""
    randomness = SeededRandomness(0) if seed else SystemRandomness()
    for note in charges or ({},):
        ledger.charge(GaussianDpEvent(5.0), randomness=randomness, note=note)
    mine = len(charges or ({},)) if own is None else own
    return statement.stated(ledger, unit="client", trust=statement.LOCAL_TRUST, sampler="all", own=mine)


CAVEATS: Mapping[str, Callable[[Path], Statement]] = {
    "SIMULATION": lambda at: said_of(ledger_of(at), seed=True),
    "FORGOTTEN": lambda _: said_of(
        Ledger.in_memory(budget=Budget(epsilon=50.0, delta=1e-6), relation=Relation.REPLACE_ONE)
    ),
    "PUBLIC": lambda at: said_of(ledger_of(at, public=True)),
    "RELEASED": lambda at: said_of(ledger_of(at, released=True)),
    "AFRESH": lambda at: said_of(
        ledger_of(at, forgets=[Forgotten(ledger="x", entries=3, epsilon=each, delta=1e-6) for each in (2.5, None)])
    ),
    "SHARED": lambda at: said_of(ledger_of(at), {}, {}, own=1),
    "UNNUMBERED": lambda at: said_of(ledger_of(at), {"numbered": False}),
    "OTHER_UNIT": lambda at: said_of(ledger_of(at), {"unit": "record"}),
    "OTHER_TRUST": lambda at: said_of(ledger_of(at), {"noise_by": "server"}),
    "THIRD_PARTY": lambda at: said_of(ledger_of(at), {"third_party": "loss mine:hinge"}),
    "MEDIAN": lambda at: said_of(ledger_of(at), {"private": False}),
}
"""A ledger for each caveat that there is, and for no other."""

_OTHERS = {"DIVISION", "FORMAT", "UNCHANGED", "FINITE", "ROUND_CEILING", "SHARED_ASSUMED", "MORE_COLLUDERS", "LIARS"}
"""No caveats, and those of a plan whose noise is shared (test_shared_release)."""


def beginning(name: str) -> str:
    """A caveat up to its first blank to fill in, or the part after it."""
    text: str = getattr(statement, name)
    return max((part.split("}")[-1] for part in text.split("{")), key=len)


def test_every_caveat_comes_from_the_ledger_alone_and_from_no_other_cause(tmp_path: Path) -> None:
    """Rule 7 of the house: whatever weakens the promise stands in the statement."""
    texts = {name for name, value in vars(statement).items() if name.isupper() and isinstance(value, str)}
    assert {name for name in texts - _OTHERS if not name.endswith("TRUST")} | {"OTHER_TRUST"} == set(CAVEATS)
    assert said_of(ledger_of(tmp_path)).caveats == ()
    for name, scenario in CAVEATS.items():
        (folder := tmp_path / name).mkdir()
        found = scenario(folder)
        assert {other for other in CAVEATS if any(beginning(other) in each for each in found.caveats)} == {name}
        assert " ".join(found.caveats[0].split()) in " ".join(found.text().split())
        assert found.caveats[0] in found.to_json()["caveats"]  # type: ignore[operator]  # a tuple of texts
