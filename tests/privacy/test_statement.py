import json
from dataclasses import fields, replace

from incrowd.privacy.accounting import Relation
from incrowd.privacy.statement import ALWAYS_ASSUMED, ALWAYS_UNCOVERED, MEDIAN, Statement

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
    assert set(written) == {field.name for field in fields(Statement)} | {"text"}
    assert written["epsilon"] == 7.98765
    assert written["relation"] == "add or remove one"


def test_text_says_the_same_as_the_fields() -> None:
    text = " ".join(STATEMENT.text().split())
    promises = ["(7.988, 1e-05)", "add or remove one client", "PLD", "Poisson, 220 of 1000", "the server is trusted"]
    for fact in (*promises, MEDIAN, *ALWAYS_ASSUMED, *ALWAYS_UNCOVERED):
        assert fact in text


def test_epsilon_in_words_is_never_below_the_number() -> None:
    for epsilon in (7.98765, 7.98744, 0.00012344, 123456.0):
        shown = replace(STATEMENT, epsilon=epsilon)
        words = shown.text().split("(")[1].split(",")[0]
        assert epsilon <= float(words) <= epsilon * 1.001


def test_nothing_to_caution_about_leaves_no_empty_heading() -> None:
    assert "Read this first" not in replace(STATEMENT, caveats=()).text()
    assert "Read this first" in STATEMENT.text()
