"""The catalogue: complete in each language, used in full, and true to the statements that it translates."""

import re
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.audit.audit import Effort
from incrowd.audit.wanted import audit
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


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_whatever_an_audit_says_is_known_in_every_language(tmp_path: Path) -> None:
    """Of clients, and of devices: attacks, looks, what was measured, what is stated."""
    small = ["data.clients=20", "privacy.rounds=3", "features={name='none'}"]
    effort = Effort(repeats=6, membership=True, among=2, quick=True)
    sampled = audit(None, overrides=[*small, "privacy.sampling=poisson", "privacy.cohort=8"], effort=Effort(repeats=3))
    layers = ["model={kind='mlp', hidden=[4]}", "privacy.clip={kind='per-layer', clip_norms=[1.0, 0.3]}"]
    layered = audit(None, overrides=[*small, *layers], effort=Effort(repeats=3))
    local = audit(None, overrides=[*small, "privacy.place=local"], effort=Effort(repeats=8))
    phishing = ROOM.parents[1] / "examples" / "phishing" / "phishing.toml"
    (tmp_path / "noised.toml").write_text(f'noise = "laplace"\n{phishing.read_text()}')
    devices = audit(phishing, effort=Effort(canaries=200))
    noised = audit(tmp_path / "noised.toml", effort=Effort(canaries=200))
    for found in (audit(None, overrides=small, effort=effort), sampled, layered, local, devices, noised):
        said = [each.attack for each in found.findings]
        for check in found.checks:
            said += [check.name, str(check.measured), str(check.stated)]
        for language in LANGUAGES[1:]:
            unknown = [one for one in said if Wording(language).said(one) is None and not one.endswith("Clip")]
            assert unknown == []


@pytest.mark.parametrize(
    ("english", "german"),
    [
        ("Everyone, 100 of 100 clients a round, 20 rounds", "alle, 100 von 100 Clients je Runde, 20 Runden"),
        (
            "Poisson, 5 to 20 of 60 clients a round, 6 rounds; it ended after 3",
            "zufällig (Poisson), im Mittel 5 bis 20 von 60 Clients je Runde, 6 Runden; beendet nach 3",
        ),
        (
            "Poisson, all of 600 records a step, 2 steps a round, at most 4 rounds, and two counts a round",
            "alle 600 Datensätze je Schritt, 2 Schritte je Runde, höchstens 4 Runden, dazu zwei Zählungen je Runde",
        ),
        ("1.0023 of what is stated", "das 1,0023-Fache der Angabe"),
        ("-0.5 at most, of 3 pairs", "höchstens -0,5, bei 3 Paaren"),
        ("noise of two steps of noise, alike by", "Rauschen zweier Schritte von noise, Ähnlichkeit"),
    ],
)
def test_what_is_in_a_sentence_is_said_in_its_language_but_for_names(english: str, german: str) -> None:
    assert Wording("de").said(english) == german


def test_powers_and_minus_signs_are_as_in_print() -> None:
    assert "2⁻⁴² to epsilon and 2⁻⁶¹ to" in Wording("en").sentence(statement.FINITE)
    assert Wording("fr").sentence("-0.5 at most, of 3 pairs") == "au plus \u22120,5, sur 3 paires"
    assert Wording("de").sentence("what-if 3-4 a-1") == '<span lang="en">what-if 3-4 a-1</span>'


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


@pytest.mark.slow
@given(st.text(), st.text())
def test_a_text_stays_text(first: str, second: str) -> None:
    found = tag("p", first, title=second)
    assert re.fullmatch(r'<p title="[^"<>]*">[^<>]*</p>', found, re.DOTALL)
    assert joined([first, Markup("<b>")]).removesuffix("<b>") == text(first)
    assert Markup("<i>") + first == f"<i>{text(first)}"
