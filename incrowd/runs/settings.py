"""TOML files and `--set key=value` as a `Config`; every error names the key, the value and the remedy."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from incrowd.errors import ConfigError
from incrowd.runs.config import Config
from incrowd.settings import explained

DEMONSTRATION = Path(__file__).with_name("demonstration.toml")
"""The run that needs no file: the embedded digits."""

_BARE = re.compile(r"[A-Za-z][A-Za-z0-9_./: -]*")


def load(path: Path | str | None = None, *, overrides: Sequence[str] = (), data: Path | str | None = None) -> Config:
    """The config in a file, with `key=value` overrides and another data folder; without a file, the demonstration.

    Edge cases: as `tables` and `parse`.
    """
    return parse(tables(path, overrides=overrides, data=data))


def tables(
    path: Path | str | None = None,
    *,
    overrides: Sequence[str] = (),
    data: Path | str | None = None,
    promise_only: bool = False,
) -> dict[str, Any]:
    """The tables of a file, with `key=value` overrides and another data folder; without a file, the demonstration, or
    with `promise_only` its data and budget.

    An override has the type that TOML gives to its value; a plain word needs no quotes. A relative path in the file is
    seen from the file, one in an override or in `data` from the working directory; the files of a table are seen from
    its folder, where one is named.

    Edge cases: a file that cannot be read or is not TOML: `ConfigError`.
    """
    source = DEMONSTRATION if path is None else Path(path)
    settings = _read(source)
    if promise_only and path is None:
        budget = {name: settings["privacy"][name] for name in ("epsilon", "delta")}
        settings = {"data": settings["data"], "privacy": budget, "run": settings["run"]}
    moved = data is not None or any(override.partition("=")[0].strip() == "data.folder" for override in overrides)
    _make_absolute(settings, source.parent, files=not moved)
    for override in overrides:
        _put(settings, override)
    if data is not None:
        section = settings.setdefault("data", {})
        if isinstance(section, dict) and section.get("name", "digits") != "digits":
            section["folder"] = str(data)
    _make_absolute(settings, Path.cwd(), files=True)
    return settings


def parse(settings: Mapping[str, object] | str) -> Config:
    """The config that TOML tables spell, or the JSON that `model_dump_json` wrote.

    Edge cases: an unknown key, a value of the wrong type, a key that is missing: `ConfigError`.
    """
    try:
        return Config.model_validate_json(settings) if isinstance(settings, str) else Config.model_validate(settings)
    except ValidationError as error:
        raise explained(error, Config) from error


def read_back(dump: Mapping[str, Any]) -> Config:
    """The settings that `model_dump(mode="json")` gave, in this or an earlier version."""
    kept = {name: dict(section) for name, section in dump.items() if name != "stop"}
    for (name, key), usual in _GONE.items():
        if key in kept.get(name, {}) and kept[name][key] in usual:
            del kept[name][key]
    privacy = kept["privacy"]
    if privacy.get("unit") == "record" and privacy.pop("clients", None) is not None:
        remedy = "a promise to silos as a whole is gone: go on with the version that began the run"
        raise ConfigError(field="privacy.clients", value=dump["privacy"]["clients"], remedy=remedy)
    return parse(json.dumps(kept))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            field="config", value=str(path), remedy=f"give a readable TOML file ({error.strerror})"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(field="config", value=str(path), remedy=f"it is not TOML: {error}") from error


_GONE: dict[tuple[str, str], tuple[object, ...]] = {
    ("data", "sigma"): (None,),
    ("run", "plot"): (True, False),
    ("privacy", "hardlimit"): (True,),
    ("privacy", "weigh"): ("equally",),
}
"""Keys of earlier versions, and the values that go without them."""

_PATHS = (
    ("data", "folder"),
    ("data", "enrolled"),
    ("features", "cache"),
    ("features", "weights"),
    ("privacy", "ledger"),
    ("privacy", "witness"),
)
_FILES = ("file", "test_file")
_OWN_CODE = ("data", "function"), ("model", "module"), ("features", "module")  # the user's code, beside the file


def _make_absolute(settings: dict[str, Any], folder: Path, *, files: bool) -> None:
    """Paths are seen from this folder; so are the `files` of a table that names no folder for them."""
    for name, key in _PATHS:
        _seen_from(folder, settings.get(name), key)
    data = settings.get("data")
    if files and isinstance(data, dict) and not isinstance(data.get("folder"), str):
        for key in _FILES:
            _seen_from(folder, data, key)
    for name, key in _OWN_CODE:
        section = settings.get(name)
        if isinstance(section, dict) and key in section:
            section["folder"] = str(folder.resolve() / str(section.get("folder", ".")))


def _seen_from(folder: Path, section: object, key: str) -> None:
    if isinstance(section, dict) and isinstance(section.get(key), str):
        section[key] = str(folder.resolve() / section[key])


def _put(settings: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *sections, name = key.strip().split(".")
    if not equals or not name:
        raise ConfigError(field="set", value=override, remedy="write section.key=value, say local.learning_rate=0.1")
    table = settings
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(field=key, value=text, remedy=f"{section} is a value, not a section")
    table[name] = _value(key, text.strip())


def _value(key: str, text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        if _BARE.fullmatch(text):
            return text
        raise ConfigError(field=key, value=text, remedy="write a TOML value: 0.1, true, [1, 2] or a word") from error
