from scripts.check_imports import problems


def test_the_library_brings_nothing_heavy_along() -> None:
    assert problems(("incrowd",)) == []


def test_the_command_line_brings_nothing_heavy_along() -> None:
    assert problems(("incrowd.cli",)) == []


def test_what_is_brought_along_is_named() -> None:
    assert problems(("json",), frozenset({"json.decoder", "torch"})) == ["import json brings json.decoder along"]
