import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.drawdiscard.specification import LONGEST, Specification
from incrowd.errors import ConfigError, DataError
from tests.drawdiscard.known_weights import FIELDS, KEYS, specification, table

PLAIN: dict[str, Any] = {**KEYS, "response": "O", "terms": [["B"], ["E1", "E2"]]}


def changed(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (PLAIN | changes).items() if value is not ...}


def features_of(row: dict[str, Any]) -> list[float]:
    """The 32 features of the paper's model by hand: main effects, then crosses."""
    single = {
        "B": [float(row["B"])],
        "E1": [float(row["E1"] == level) for level in "AB"],
        "E2": [float(row["E2"] == level) for level in "abc"],
        "D": [row["D"] / 3],
        "I": [row["I"] / 5],
    }
    names = list(single)
    features = [value for name in names for value in single[name]]
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            features += [one * other for one in single[first] for other in single[second]]
    return features


def test_the_paper_s_model_has_33_weights() -> None:
    asked = specification()
    assert asked.size == 33
    assert len(asked.columns) == 32
    assert asked.columns[:3] == ("B", "E1=A", "E1=B")
    assert asked.columns[-2:] == ("E2=c:I", "D:I")


def test_examples_become_features_and_responses() -> None:
    found = table(20)
    features, responses = specification().encode(found)
    by_hand = [features_of({name: found[name][place] for name in found}) for place in range(20)]
    np.testing.assert_allclose(features.toarray(), by_hand)
    np.testing.assert_array_equal(responses[:, 0], found["O"])


def test_examples_without_a_response_are_left_out() -> None:
    found = table(5)
    found["O"][1] = None
    found["O"][3] = "what?"
    features, responses = specification().encode(found)
    assert features.shape == (3, 32)
    np.testing.assert_array_equal(responses[:, 0], [found["O"][place] for place in (0, 2, 4)])


def test_a_table_without_a_field_is_refused() -> None:
    found = table(5)
    del found["E1"]
    with pytest.raises(DataError, match="the table has no field 'E1': the specification needs"):
        specification().encode(found)


def test_the_model_has_as_many_weights_as_the_specification_says() -> None:
    for asked in (
        specification(),
        Specification.of(changed(intercept=False)),
        Specification.of(changed(terms=[])),
        Specification.of(changed(link="multinomial", response="E2", terms=[["B"]])),
    ):
        assert asked.model.size == asked.size
        assert asked.mechanism.size == asked.size


def test_the_text_gives_back_the_specification() -> None:
    asked = specification()
    again = Specification.from_json(asked.to_json())
    assert again == asked
    assert again.to_json() == asked.to_json()
    assert again.fingerprint == asked.fingerprint
    assert specification(gamma=0.004).fingerprint != asked.fingerprint
    turned = Specification.of({**json.loads(asked.to_json()), "fields": dict(reversed(FIELDS.items()))})
    assert turned.fingerprint == asked.fingerprint


def test_people_are_told_what_it_means() -> None:
    words = specification(privacy="feature").describe()
    assert "on its own" in words
    assert "any two tables" in words


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        (changed(code="import os"), "code"),
        (changed(gamma=...), "gamma"),
        (changed(gamma="0.1"), "gamma"),
        (changed(gamma=0), "gamma"),
        (changed(clip=0), "clip"),
        (changed(clip=-1), "clip"),
        (changed(epsilon=0), "epsilon"),
        (changed(epsilon=True), "epsilon"),
        (changed(instances=0), "instances"),
        (changed(instances=2.5), "instances"),
        (changed(examples=0), "examples"),
        (changed(name=""), "name"),
        (changed(link="probit"), "link"),
        (changed(noise="cauchy"), "noise"),
        (changed(noise="gaussian"), "delta"),
        (changed(delta=1e-6), "delta"),
        (changed(privacy="feature", bound="norm"), "bound"),
        (changed(privacy="person"), "privacy"),
        (changed(fields={}), "fields"),
        (changed(fields={"O": {"type": "boolean"}, "B; DROP": {"type": "boolean"}}), "fields.B; DROP.[key]"),
        (changed(fields={"O": {"type": "python"}}), "fields.O"),
        (changed(fields={"O": {"type": "number", "low": 1, "high": 0}}), "high"),
        (changed(fields={"O": {"type": "number", "low": 1}}), "fields.O.high"),
        (changed(response="X"), "response"),
        (changed(response="E2", terms=[["B"]]), "response"),
        (changed(link="multinomial"), "response"),
        (changed(terms=[["X"]]), "terms"),
        (changed(terms=[["O"]]), "terms"),
        (changed(terms=[["B", "B"]]), "terms"),
        (changed(terms=[["B"], ["B"]]), "terms"),
        (changed(terms=[["B", "D"], ["D", "B"]]), "terms"),
        (changed(terms=[["B", "D", "I"]]), "terms.0"),
        (changed(terms=[[]]), "terms.0"),
        (changed(terms=[], intercept=False), "terms"),
        (changed(hidden=[3]), "hidden"),
        (changed(link=print), "specification"),
        (changed(gamma=math.nan), "gamma"),
        (changed(clip=math.inf), "clip"),
        (changed(delta=-math.inf), "delta"),
        (changed(fields={"O": {"type": "number", "low": 0, "high": math.inf}}), "fields.O.high"),
    ],
)
def test_what_is_not_a_specification_is_refused_by_name(keys: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Specification.of(keys)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "null", '{"gamma": NaN}', "\x00", "[" * 100_000, " " * (LONGEST + 1)]
)
def test_any_text_is_read_or_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Specification.from_json(text)


@pytest.mark.slow
def test_a_device_needs_no_formulas_and_no_torch() -> None:
    code = "import sys, incrowd.drawdiscard.device; print('formulaic' in sys.modules, 'torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["False", "False"]


# What is not stated


def test_what_is_not_stated_is_the_best_for_what_is_promised() -> None:
    def filled(**changes: Any) -> tuple[object, ...]:
        asked = Specification.of(changed(**changes))
        return asked.noise, asked.bound, asked.largest, asked.merge

    assert filled(noise=...) == ("direction", "norm", None, 0.25)
    assert filled(noise=..., privacy="feature") == ("laplace", "element", None, 0.25)
    assert filled(noise=..., bound="element") == ("laplace", "element", None, 0.25)
    assert filled(noise=..., largest=None, merge=1.0) == ("laplace", "norm", None, 1.0)
    assert filled(noise="laplace") == ("laplace", "norm", 4, 0.25)
    assert filled(noise="gaussian", delta=1e-6) == ("gaussian", "norm", None, 0.25)
    again = Specification.from_json(Specification.of(changed(privacy="feature")).to_json())
    assert (again.bound, again.largest) == ("element", None)


@pytest.mark.parametrize("key", ["gamma", "clip", "epsilon"])
def test_a_key_that_must_be_stated_comes_with_a_start(key: str) -> None:
    with pytest.raises(ConfigError, match=r"it has no default: .*(4 divided|1 is a start|say 2)"):
        Specification.of(changed(**{key: ...}))


@given(st.lists(st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 3.0]), min_size=1, max_size=12), st.integers(1, 14))
def test_the_largest_numbers_of_a_gradient_are_kept_and_equal_ones_together(numbers: list[float], count: int) -> None:
    asked = Specification.of(changed(largest=count))
    sizes = sorted((abs(number) for number in numbers), reverse=True)
    least = sizes[min(count, len(sizes)) - 1]
    expected = [number if abs(number) >= least else 0.0 for number in numbers]
    assert asked.kept(np.array(numbers)).tolist() == expected
    assert Specification.of(changed(largest=None)).kept(np.array(numbers)).tolist() == numbers


def test_fields_may_have_the_words_for_columns_of_tables() -> None:
    words = {
        "opened": "yes/no",
        "sender": {"levels": ["a", "b"]},
        "age": {"range": [0, 120]},
        "mails": {"kind": "whole number", "range": [0, 9]},
        "text": {"kind": "text", "buckets": 50},
        "id": "ignore",
        "length": {"type": "count", "most": 9, "column": "text"},
    }
    wire = {
        "opened": {"type": "boolean"},
        "sender": {"type": "category", "levels": ["a", "b"]},
        "age": {"type": "number", "low": 0.0, "high": 120.0},
        "mails": {"type": "integer", "low": 0, "high": 9},
        "text": {"type": "text", "buckets": 50},
        "length": words["length"],
    }
    keys = {key: KEYS[key] for key in ("name", "gamma", "clip", "epsilon")}
    by_words, by_wire = (Specification.from_formula("opened ~ .", **keys, fields=fields) for fields in (words, wire))
    assert by_words.fingerprint == by_wire.fingerprint
    for refused in ("number", {"dates": ["2020-01-01", "2021-01-01"]}):
        with pytest.raises(ConfigError, match=r"fields\.age = .*devices have numbers with a range"):
            Specification.of({**PLAIN, "fields": {**FIELDS, "age": refused}})
