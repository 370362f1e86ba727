"""Fields that look at text and lists."""

import numpy as np
import pytest

from incrowd import Device, Specification
from incrowd.drawdiscard import Policy
from incrowd.drawdiscard.fields import HashedField, ListField, TextField
from incrowd.drawdiscard.texts import LONGEST_TEXT
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Relation
from incrowd.privacy.ledger.ledger import Ledger


def test_the_owner_hears_what_does_not_fit() -> None:
    long = "x" * (LONGEST_TEXT + 1)
    assert [HashedField(buckets=2).misfit(value) for value in ["a", 7, 0.5, None]] == [
        None,
        None,
        "is no text",
        "is missing",
    ]
    assert [TextField(buckets=2).misfit(value) for value in ["a", 7, 0.5, long]] == [
        None,
        None,
        "is no text",
        f"is longer than {LONGEST_TEXT} characters, of which the first count",
    ]
    assert [ListField(levels=("a", "b"), most=1).misfit(value) for value in ["a", "a,c", "a,b", 0.5]] == [
        None,
        "holds what is none of the levels",
        "holds more than 1 items, of which the first count",
        "is no text and no list",
    ]
    assert [ListField(buckets=3).misfit(value) for value in [["a", 7], (), "a,b"]] == [None, None, None]


ASKED = Specification.from_formula(
    "spam ~ words * tags + length",
    name="mail",
    fields={
        "spam": {"type": "boolean"},
        "words": {"type": "text", "buckets": 6, "column": "the text"},
        "length": {"type": "count", "steps": [5, 10], "column": "the text"},
        "tags": {"type": "list", "levels": ["home", "work"]},
    },
    gamma=0.1,
    clip=0.1,
    epsilon=2.0,
)
ROWS: list[dict[str, object]] = [
    {"spam": 1, "the text": "win a hat", "tags": ["work", "home"]},
    {"spam": 0, "the text": "hello", "tags": "home"},
    {"spam": 1, "the text": None, "tags": None},
]


def test_a_device_learns_from_text_and_its_owner_is_told() -> None:
    ledger = Ledger.in_memory(budget=Policy().budget, relation=Relation.REPLACE_ONE)
    with Device(ROWS, ledger=ledger) as device:
        fit = device.check(ASKED)
        assert (fit.examples, fit.usable) == (3, 3)
        assert fit.problems == ("words: 1 of 3 is missing", "tags: 1 of 3 is missing", "length: 1 of 3 is missing")
        update = device.answer(ASKED.to_json(), np.zeros(ASKED.size))
        assert update.shape == (ASKED.size,)


def test_the_response_cannot_come_in_by_another_name() -> None:
    keys: dict[str, object] = {"name": "x", "gamma": 1.0, "clip": 1.0, "epsilon": 1.0}
    fields: dict[str, object] = {
        "spam": {"type": "boolean"},
        "again": {"type": "hashed", "buckets": 2, "column": "spam"},
    }
    with pytest.raises(ConfigError, match="the response cannot be a feature"):
        Specification.from_formula("spam ~ again", fields=fields, **keys)
    with pytest.raises(ConfigError, match="choose a number, an integer, a boolean or a category"):
        Specification.from_formula("tag ~ spam", fields=fields | {"tag": {"type": "hashed", "buckets": 2}}, **keys)
