"""The page itself: text stays text, long runs stay small, the same gives the same, and nothing is loaded."""

import base64
import hashlib
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from incrowd.errors import ConfigError, DataError
from incrowd.report import figures
from incrowd.report.page import SECTIONS, page, sections, static
from incrowd.report.shown import Shown, of_status, read, told_apart
from tests.report import folders
from tests.report.conftest import Made

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e $\\frac$"


class Elements(HTMLParser):
    """The elements of a page, and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def of(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.found if tag == name]


def evil(value: Any) -> Any:
    """The same with a script in every text and in every name."""
    if isinstance(value, str):
        return EVIL
    if isinstance(value, dict):
        return {key: evil(inner) for key, inner in value.items()} | {EVIL: EVIL}
    return [evil(inner) for inner in value] if isinstance(value, list | tuple) else value


def tainted(shown: Shown) -> Shown:
    """The same with scripts wherever an operator, a party or a file could have put a text."""
    told = shown.to_json()
    texts = ("result", "settings", "promises", "silos", "evaluations", "audit", "search", "pool")
    for name in texts:
        told[name] = evil(told[name])
    told["settings"] = {**{key: evil(value) for key, value in shown.settings.items()}, EVIL: {EVIL: EVIL}}
    told["promises"] = {f"{EVIL}{party}": evil(dict(promise)) for party, promise in shown.promises.items()}
    told["ledgers"] = [
        {**evil(dict(book)), "problem": None, "lines": [evil(dict(line)) for line in book["lines"]]}
        for book in shown.ledgers
    ]
    return Shown(**{**told, "name": EVIL, "data": EVIL, "unit": EVIL, "version": EVIL})


@pytest.mark.parametrize("kind", folders.KINDS)
def test_whatever_a_text_holds_it_stays_text(made: Made, kind: str) -> None:
    harmless = read(made(kind))
    if harmless.pool is not None:  # what another machine says is looked at before it is taken
        with pytest.raises(DataError, match="did not give the status"):
            of_status(evil(dict(harmless.pool)), name=EVIL)
        return
    text = page(told_apart([tainted(harmless), tainted(harmless)]))
    elements = Elements(text)
    assert elements.of("script") == []
    assert all((one["src"] or "").startswith("data:image/png;base64,") for one in elements.of("img"))
    known = {"class", "id", "lang", "href", "src", "alt", "role", "scope", "open", "tabindex", "title"}
    known |= {"content", "name", "charset", "http-equiv"}
    names = {name for _, attributes in elements.found for name in attributes}
    assert {name for name in names if not name.startswith(("aria-", "data-"))} <= known
    assert "\u202e" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_nothing_is_loaded_and_only_its_own_script_may_run(made: Made) -> None:
    for state, scripts in ((None, 0), ("Live", 1)):
        text = page([read(made("simulated"))], state=state)
        elements = Elements(text)
        (policy,) = [one["content"] for one in elements.of("meta") if one.get("http-equiv")]
        assert policy is not None
        assert f"style-src {digest('report.css')}; img-src data:" in policy
        assert len(elements.of("script")) == scripts
        own = f"script-src {digest('live.mjs')}; connect-src 'self'" if scripts else "script-src 'none'"
        assert own in policy
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert {one["href"] for one in elements.of("a")} == {"#main", *(f"#{key}" for key in ids(text))}
        assert not [one for tag, one in elements.found if tag == "link" or "style" in one]


def digest(file: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(static(file).encode()).digest()).decode()}'"


def ids(text: str) -> list[str]:
    return re.findall(r'<section id="([a-z]+)"', text)


def test_sections_are_those_of_the_page_and_references_lead_to_elements(made: Made) -> None:
    shown = [read(made(kind)) for kind in folders.KINDS]
    found, text = sections(shown), page(shown)
    assert ids(text) == list(found) == [key for key in SECTIONS if key in found]
    there = re.findall(r' id="([^"]+)"', text)
    assert len(set(there)) == len(there)
    assert set(re.findall(r'aria-(?:labelledby|describedby)="([^"]+)"', text)) <= set(there)


def test_several_runs_share_axes_and_show_what_differs(made: Made, folder: Path) -> None:
    shutil.copytree(made("simulated"), folder / "other")
    folders.change_settings(folder / "other", lambda config: config["server"].update(learning_rate=99.5))
    shown = [read(made("simulated")), read(folder / "other"), read(made("in earnest"))]
    text = page(shown)
    assert "What tells the runs apart" in text
    assert "server.learning_rate" in text
    assert "99.5" in text
    assert text.count('id="over-accuracy"') == 1
    assert (
        text.count("SIMULATION: the random numbers come from a seed, so whoever knows it can remove the noise. ") == 1
    )


def test_an_audit_is_shown_and_one_that_found_a_fault_is_loud(made: Made) -> None:
    finding = {"attack": "a canary", "claimed": 8.0, "lower_bound": 9.5, "trials": 100, "holds": False}
    check = {"name": "noise", "measured": 0.5, "stated": 1.0, "holds": False, "note": ""}
    audit = {"epsilon_claimed": 8.0, "epsilon_lower_bound": 9.5, "confidence": 0.95, "holds": False}
    audited = {**audit, "findings": [finding], "checks": [check]}
    text = page([replace(read(made("simulated")), audit=audited)])
    assert "do not rely on it" in text
    assert "NO</td>" in text
    assert "do not rely on it" not in page([replace(read(made("simulated")), audit={**audited, "holds": True})])


def test_the_headline_is_the_verdict_of_the_run_with_its_baseline_and_uncertainty(made: Made) -> None:
    """Where classes are uneven, accuracy says little: the measure of the verdict counts."""
    shown = read(made("simulated"))
    verdict = {"measure": "auc", "value": 0.547, "baseline": 0.5, "std": 0.03, "advice": ["Take recipe = 'tables'."]}
    text = page([replace(shown, result={**shown.result, "verdict": verdict})])
    card = text[text.index('<div class="card">') :]
    assert card.startswith('<div class="card"><h3>AUC</h3><p class="big">0.547 ± 0.06</p>')
    assert "guessing: 0.5" in card
    assert "Take recipe = &#39;tables&#39;." in text
    plain = page([shown])
    assert '<div class="card"><h3>Accuracy</h3>' in plain
    assert "always the most frequent answer: 11.4" in plain
    several = page([replace(shown, result={**shown.result, "verdict": verdict}), replace(shown, name="another")])
    assert "0.547 ± 0.06 (AUC)" in several


def test_without_matplotlib_figures_are_tables(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = [read(made("simulated"))]
    assert len(Elements(page(shown)).of("img")) > 2  # the control
    monkeypatch.setattr(figures, "find_spec", lambda _: None)
    elements = Elements(page(shown))
    assert elements.of("img") == []
    assert len([one for one in elements.of("details") if one.get("class") == "behind"]) > 2


def test_no_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one run"):
        page([])
