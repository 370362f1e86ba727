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


def test_the_help_of_a_removed_command_goes() -> None:
    assert "old help" not in cli_help.updated(PAGE, {})


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """The help of every command, as it is here."""
    return cli_help.current_helps()


def test_every_command_is_found_with_its_own_help(helps: dict[str, str]) -> None:
    assert {"incrowd", "incrowd plan", "incrowd ledger show", "incrowd ledger verify"} <= set(helps)
    for command, text in helps.items():
        assert f"Usage: {command}" in text, "each help belongs to its command"


def test_no_help_shows_a_backslash_of_markup(helps: dict[str, str]) -> None:
    assert "[default: 0]" in helps["incrowd sweep"]
    assert [command for command, text in helps.items() if "\\[" in text] == []
