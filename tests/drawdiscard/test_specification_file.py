import json
from pathlib import Path

import pytest

from incrowd.drawdiscard.specification import read_specification
from incrowd.errors import ConfigError
from tests.drawdiscard.mail import KEYS, asked

TOML = """
name = "mail"
formula = "opened ~ sender + words"
gamma = 0.05
clip = 0.2
epsilon = 2.0
noise = "laplace"
instances = 4

[fields]
opened = {type = "boolean"}
sender = {type = "category", levels = ["friend", "shop"]}
words = {type = "integer", low = 0, high = 500}
"""


def test_a_file_may_state_a_specification_in_three_ways(tmp_path: Path) -> None:
    stated = {
        "plain.json": asked().to_json(),
        "formula.json": json.dumps({**KEYS, "formula": "opened ~ sender + words"}),
        "formula.toml": TOML,
    }
    for name, text in stated.items():
        (tmp_path / name).write_text(text)
        assert read_specification(tmp_path / name) == asked(), name


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.json", "{", "it is no JSON"),
        ("a.json", "[" * 100_000, "it is no JSON"),
        ("a.toml", "name = ", "it is no TOML"),
        ("a.json", b"\xff\xfe{}", "it is no JSON"),
        ("a.json", "[1]", "give names and values"),
        ("a.json", '{"formula": 3, "fields": {}}', "give a text"),
        ("a.json", json.dumps({**KEYS, "formula": "opened ~ nothing"}), "it is no field"),
        ("a.json", json.dumps({**KEYS, "formula": "opened ~ words", "response": "opened"}), "the formula states it"),
        ("a.toml", TOML.replace("gamma", "gama"), "gama"),
        ("a.json", asked().to_json().replace('"gamma":0.05', '"gamma":NaN'), "gamma"),
    ],
)
def test_what_states_none_is_refused(tmp_path: Path, name: str, text: str | bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=problem):
        read_specification(tmp_path / name)
