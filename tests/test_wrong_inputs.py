"""What is wrong is answered in one line that names the field, the value and the remedy; nothing is written or spent.

`wrong/commands.txt` holds command lines, each with its exit status and what it answers; `wrong/calls.txt` calls from
Python, each with its error. With INCROWD_WRITE_ANSWERS=1 the tables are written anew: read what that changes.
"""

import os
import re
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from incrowd.errors import IncrowdError
from tests.command import command
from tests.wrong.place import prepare
from tests.wrong.program import names

WRONG = Path(__file__).parent / "wrong"
COMMANDS, CALLS = WRONG / "commands.txt", WRONG / "calls.txt"


def table(path: Path) -> list[tuple[str, str]]:
    """What is tried, and what it answers."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(zip(lines[::2], lines[1::2], strict=True))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that can be given to the wrong command, made once: nothing changes it."""
    found = tmp_path_factory.mktemp("place").resolve()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INCROWD_STATE", str(tmp_path_factory.mktemp("state")))
        prepare(found)
    return found


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory; whatever is tried leaves it as it is, and begins no ledger in the user's state."""
    monkeypatch.chdir(place)
    before = contents(place)
    yield place
    assert contents(place) == before
    assert not list(Path(os.environ["INCROWD_STATE"]).glob("ledgers/**/*.sqlite"))


def contents(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def told(text: str, place: Path) -> str:
    """An answer, as the tables have it: no path tells where the tests ran."""
    return text.replace(os.environ["INCROWD_STATE"], "<state>").replace(str(place), "<here>")


def answer_of_command(words: str, place: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The exit status and what is said on standard error."""
    finished = command(patch, capsys)(*shlex.split(words)[2:])
    assert finished.out == ""
    return told(f"{finished.status} {finished.err.strip()}", place)


def answer_of_call(call: str, place: Path) -> str:
    """The kind of the error, and what it says."""
    known = names()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(IncrowdError) as raised:
            eval(call.removeprefix(">>> "), known)  # noqa: S307 - our own table
    return told(f"{type(raised.value).__name__}: {raised.value}", place)


@pytest.mark.parametrize(("words", "answer"), table(COMMANDS))
def test_a_wrong_command(
    words: str, answer: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compare(COMMANDS, words, answer, answer_of_command(words, here, monkeypatch, capsys))


@pytest.mark.parametrize(("call", "answer"), table(CALLS))
def test_a_wrong_call(call: str, answer: str, here: Path) -> None:
    compare(CALLS, call, answer, answer_of_call(call, here))


@pytest.mark.parametrize("path", [COMMANDS, CALLS])
def test_every_answer_is_one_that_helps(path: Path) -> None:
    """Nothing is tried twice; whoever uses a command wrongly is told so by the exit status."""
    tried = [one for one, _ in table(path)]
    assert len(set(tried)) == len(tried)
    form = r"[123] incrowd: \S.{15,}" if path == COMMANDS else r"(ConfigError|DataError|Ledger[A-Z][a-z]+): \S.{15,}"
    assert [answer for _, answer in table(path) if not re.fullmatch(form, answer)] == []


def compare(path: Path, tried: str, expected: str, found: str) -> None:
    """The answer is the one in the table; where it is to be written anew, it is put there."""
    if "INCROWD_WRITE_ANSWERS" in os.environ:
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(f"{tried}\n{expected}\n", f"{tried}\n{found}\n"), encoding="utf-8")
    else:
        assert found == expected
