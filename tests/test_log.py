import json
import logging
from collections.abc import Iterator

import pytest

from incrowd._log import log_to_stderr, note


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("incrowd")
    before = root.handlers[:], root.level, own.level
    yield
    root.handlers[:], own.level = before[0], before[2]
    root.setLevel(before[1])


def test_an_event_is_one_json_object_or_words_in_a_line_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(as_json=True)
    logger = logging.getLogger("incrowd.somewhere")
    note(logger, "refused", level=logging.WARNING, why='two\nlines "and" quotes', time="forged", count=3)
    logging.getLogger("other").warning("of %s", "another library")
    logging.getLogger("other").info("not said")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(each["event"], each["level"]) for each in lines] == [
        ("refused", "warning"),
        ("of another library", "warning"),
    ]
    assert (lines[0]["why"], lines[0]["count"]) == ('two\nlines "and" quotes', 3)
    assert lines[0]["time"].endswith("+00:00")
    log_to_stderr(as_json=False)
    note(logging.getLogger("incrowd.somewhere"), "refused", why="two\nlines")
    assert capsys.readouterr().err.rstrip().endswith("refused why: two lines")
