import pytest

from scripts import cli_help

PAGE = """# Command line

Words.

## `incrowd plan`

Plan words.

```text
$ incrowd plan --help
old help
```

More words.
"""


def test_help_is_replaced_and_words_stay() -> None:
    page = cli_help.updated(PAGE, {"incrowd plan": "new help"})
    assert page == PAGE.replace("old help", "new help")


def test_a_page_that_is_up_to_date_stays() -> None:
    assert cli_help.updated(PAGE, {"incrowd plan": "old help"}) == PAGE


def test_a_new_command_gets_a_section() -> None:
    page = cli_help.updated(PAGE, {"incrowd plan": "old help", "incrowd ledger show": "its help"})
    assert page == PAGE + "\n## `incrowd ledger show`\n\n```text\n$ incrowd ledger show --help\nits help\n```\n"


def test_the_help_of_a_removed_command_goes() -> None:
    assert "old help" not in cli_help.updated(PAGE, {})


def test_every_command_is_found_with_its_own_help() -> None:
    helps = cli_help.current_helps()
    assert {"incrowd", "incrowd plan", "incrowd ledger show", "incrowd ledger verify"} <= set(helps)
    for command, text in helps.items():
        assert f"Usage: {command}" in text, "each help belongs to its command"


@pytest.mark.parametrize("width", ["40", "200"])
def test_the_help_is_the_same_on_every_terminal(width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = cli_help.current_helps()
    monkeypatch.setenv("COLUMNS", width)
    assert cli_help.current_helps() == before
