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


def test_every_command_is_found_with_its_own_help_without_a_backslash_of_markup() -> None:
    helps = cli_help.current_helps()
    assert {"incrowd", "incrowd plan", "incrowd ledger show", "incrowd ledger verify"} <= set(helps)
    for command, text in helps.items():
        assert f"Usage: {command}" in text, "each help belongs to its command"
        assert "\\[" not in text
    assert "[default: 0]" in helps["incrowd sweep"]
