from scripts.check_imports import problems


def test_what_is_brought_along_is_named() -> None:
    assert problems(("incrowd", "incrowd.cli")) == []
    assert problems(("json",), frozenset({"json.decoder", "torch"})) == ["import json brings json.decoder along"]
