"""The catalogue: complete in each language, used in full, and true to the statements that it translates."""

import re
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.privacy import statement
from incrowd.report.svg import Markup, joined, tag, text
from incrowd.report.words import LANGUAGES, Wording, catalogue

ROOM = Path(__file__).parents[2] / "incrowd" / "report"


def placeholders(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def test_every_text_is_there_in_every_language_with_the_same_values() -> None:
    for key, texts in catalogue().items():
        assert set(texts) == set(LANGUAGES), key
        assert all(texts.values()), key
        assert len({frozenset(placeholders(one)) for one in texts.values()}) == 1, key


def test_translations_are_translations() -> None:
    same = {key for key, texts in catalogue().items() if len(set(texts.values())) == 1}
    assert same <= {
        "theme.auto", "epsilon", "delta", "of_budget", "budget", "budget.line", "silo", "nav.silos", "norms",
        "audit.auc", "runs.count",
    }  # fmt: skip


def test_every_text_is_used() -> None:
    code = "".join(path.read_text() for path in ROOM.glob("*.py"))
    made = re.findall(r'f"([a-z_.]+)\{', code)
    literal = set(re.findall(r'"([a-z_.\-V]+)"', code))
    unused = [key for key in catalogue() if key not in literal and not key.startswith((*made, "said."))]
    assert unused == []


def test_every_sentence_of_a_statement_is_known_in_every_language() -> None:
    values = {"others": 3, "other": "record", "unit": "client", "spent": "2.5", "trust": statement.CENTRAL_TRUST}
    known = {
        name: value
        for name, value in vars(statement).items()
        if isinstance(value, str) and name.isupper() and " " in value
    }
    sentences = [value.format(**values) for name, value in known.items() if name != "FORMAT"]
    sentences += [*statement.ALWAYS_ASSUMED, *statement.RECORDS_ASSUMED, *statement.ALWAYS_UNCOVERED]
    assert len(sentences) > 15
    for language in LANGUAGES[1:]:
        words = Wording(language)
        for sentence in sentences:
            assert 'lang="en"' not in words.sentence(sentence), sentence
            assert words.sentence(sentence) != text(sentence), sentence
        assert words.sentence("something else & more") == '<span lang="en">something else &amp; more</span>'


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0"),
        (1234.5678, "1,235"),
        (0.001, "0.001"),
        (1e-5, "10⁻⁵"),
        (2.5e-6, "2.5·10⁻⁶"),
        (float("nan"), "\u2013"),
    ],
)
def test_numbers_are_short(value: float, said: str) -> None:
    assert Wording("en").number(value) == said


def test_numbers_are_spelt_as_the_language_does() -> None:
    assert Wording("de").number(1234.5, 5) == "1\u202f234,5"
    assert Wording("fr").percent(0.123) == "12,3\u00a0%"


@given(st.floats(0, 1))
def test_the_odds_of_a_promise_are_never_rounded_down(share: float) -> None:
    assert float(Wording("en").odds(share).removesuffix("\u00a0%")) >= 100 * share


@given(st.text(), st.text())
def test_a_text_stays_text(first: str, second: str) -> None:
    found = tag("p", first, title=second)
    assert re.fullmatch(r'<p title="[^"<>]*">[^<>]*</p>', found, re.DOTALL)
    assert joined([first, Markup("<b>")]).removesuffix("<b>") == text(first)
    assert Markup("<i>") + first == f"<i>{text(first)}"
