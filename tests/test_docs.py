"""The pages cannot rot: their examples run, every command and every public name is on them."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import incrowd
from scripts import cli_help

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TRAINING = (
    "extending.md",
    "features.md",
    "getting-started.md",
    "hugging-face.md",
    "own-loop.md",
    "own-models.md",
    "silos.md",
)  # they train, slowly
NEEDS = {"hugging-face.md": "peft"}  # a package that not every installation has
EXAMPLE = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)#:]+)(#[^)]*)?\)")


def run_examples(name: str, text: str) -> int:
    """Runs the examples of a page one after the other, as a reader would; returns how many there were."""
    names: dict[str, object] = {"__name__": "example"}
    examples = list(EXAMPLE.finditer(text))
    for example in examples:
        above = text.count("\n", 0, example.start("code"))
        if ">>>" in example["code"]:
            test = doctest.DocTestParser().get_doctest(example["code"], names, name, name, above)
            doctest.DebugRunner().run(test, clear_globs=False)
            names = test.globs
        else:  # empty lines above, so that a traceback names the line of the page
            exec(compile("\n" * above + example["code"], name, "exec"), names)  # noqa: S102 - our own pages
    return len(examples)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page.name in TRAINING else []) for page in PAGES],
)
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # what PEFT asks transformers for
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name], reason="not installed: pip install 'incrowd[huggingface]'")
    monkeypatch.chdir(tmp_path)
    run_examples(page.name, page.read_text())


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("assert 1 + 1 == 3", AssertionError),
        ("import incrowd.no_such_module", ModuleNotFoundError),
        (">>> 1 + 1\n3", doctest.DocTestFailure),
        (">>> 1 / 0\n1", doctest.UnexpectedException),
    ],
)
def test_a_wrong_example_is_found(code: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        run_examples("page", f"Words.\n\n```python\n{code}\n```\n")


def test_every_command_is_documented_with_its_present_help() -> None:
    page = cli_help.PAGE.read_text()
    assert cli_help.updated(page, cli_help.current_helps()) == page, "run python -m scripts.cli_help"


def public_names() -> set[str]:
    """Where each public name is to be found; what two packages offer is named by the first of them."""
    packages = [importlib.import_module("incrowd")]
    inside = (module.name for module in pkgutil.walk_packages(incrowd.__path__, "incrowd.") if module.ispkg)
    packages += [package for package in map(importlib.import_module, inside) if hasattr(package, "__all__")]
    found: dict[int, str] = {}
    for package in packages:
        for name in set(package.__all__) - {"__version__"}:
            found.setdefault(id(getattr(package, name)), f"{package.__name__}.{name}")
    return set(found.values())


def documented(page: str) -> list[str]:
    """The names that a page of the interface has, in its order."""
    return re.findall(r"^\.\. (?:auto|py:)\w+:: (incrowd\S+)$", page, re.MULTILINE)


def value_of(name: str) -> object:
    package, _, last = name.rpartition(".")
    return getattr(importlib.import_module(package), last)


def test_every_public_name_is_documented_once() -> None:
    names = documented((ROOT / "docs/api.md").read_text())
    values = [id(value_of(name)) for name in names]  # what two packages offer may be documented under either
    assert sorted(values) == sorted(set(values))
    assert sorted(name for name in public_names() if id(value_of(name)) not in values) == []
    for package, _, last in (name.rpartition(".") for name in names):
        assert last in importlib.import_module(package).__all__, f"{package}.{last}"


def test_the_glossary_is_short_and_in_order() -> None:
    words = re.findall(r"^- \*\*(.+?)\*\*", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert words == sorted(set(words))
    assert 0 < len(words) <= 25


def test_every_link_has_a_text_for_readers_without_sphinx() -> None:
    assert [page.name for page in PAGES if re.search(r"(?<!!)\[\]\(", page.read_text())] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for link in LINK.finditer(page.read_text()):
        assert not link["target"] or (page.parent / link["target"]).exists(), link[0]
