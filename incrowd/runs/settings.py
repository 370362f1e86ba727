"""TOML files and `--set key=value` as a `Config`; every error names the key, the value and the remedy."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from pydantic import ValidationError

from incrowd.errors import ConfigError
from incrowd.runs.config import UNITS, AnyConfig, CommonSections, Config, SiloConfig
from incrowd.settings import explained

DEMONSTRATION = Path(__file__).with_name("demonstration.toml")
"""The run that needs no file: the embedded digits."""

C = TypeVar("C", bound=CommonSections)

_BARE = re.compile(r"[A-Za-z][A-Za-z0-9_./: -]*")


def load(path: Path | str | None = None, *, overrides: Sequence[str] = (), data: Path | str | None = None) -> Config:
    """The config in a file, with `key=value` overrides and another data folder; without a file, the demonstration.

    Edge cases: as `tables` and `parse`; a run of silos (`privacy.unit` is "record") is refused.
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


@overload
def parse(settings: Mapping[str, object] | str) -> Config: ...


@overload
def parse(settings: Mapping[str, object] | str, kind: type[C]) -> C: ...


def parse(settings: Mapping[str, object] | str, kind: type[CommonSections] = Config) -> CommonSections:
    """The config of a kind that TOML tables spell, or the JSON that `model_dump_json` wrote.

    Edge cases: an unknown key, a value of the wrong type, a key that is missing: `ConfigError`.
    """
    try:
        return kind.model_validate_json(settings) if isinstance(settings, str) else kind.model_validate(settings)
    except ValidationError as error:
        raise explained(error, kind) from error


def settings_of(settings: Mapping[str, Any]) -> AnyConfig:
    """The config of the unit that `privacy.unit` names, "client" unless it is given.

    Edge cases: as `parse`; no known unit: `ConfigError`.
    """
    return parse(settings, SiloConfig) if of_records(settings) else parse(settings)


def read_back(dump: Mapping[str, Any]) -> AnyConfig:
    """The settings that `model_dump(mode="json")` gave."""
    if not of_records(dump):
        return parse(json.dumps(dump))
    privacy = dict(dump["privacy"])
    if privacy.pop("clients", None) is not None:
        remedy = "a promise to silos as a whole is gone: go on with the version that began the run"
        raise ConfigError(field="privacy.clients", value=dump["privacy"]["clients"], remedy=remedy)
    return parse(json.dumps({**dump, "privacy": privacy}), SiloConfig)


def of_records(settings: Mapping[str, Any]) -> bool:
    """Whether single records are protected. Edge cases: no known unit: `ConfigError`."""
    privacy = settings.get("privacy")
    unit = privacy.get("unit", "client") if isinstance(privacy, Mapping) else "client"
    if unit not in UNITS:
        raise ConfigError(field="privacy.unit", value=unit, remedy=f"choose from {' or '.join(UNITS)}")
    return bool(unit == "record")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            field="config", value=str(path), remedy=f"give a readable TOML file ({error.strerror})"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(field="config", value=str(path), remedy=f"it is not TOML: {error}") from error


_PATHS = (
    ("data", "folder"),
    ("data", "enrolled"),
    ("features", "cache"),
    ("features", "weights"),
    ("privacy", "ledger"),
    ("privacy", "witness"),
)
_FILES = ("file", "test_file")
_OWN_CODE = ("data", "function"), ("model", "module"), ("features", "module")  # which lies beside the file


def _make_absolute(settings: dict[str, Any], folder: Path, *, files: bool) -> None:
    """Paths are seen from this folder; so are the `files` of a table that names no folder for them."""
    for name, key in _PATHS:
        _seen_from(folder, settings.get(name), key)
    data = settings.get("data")
    if files and isinstance(data, dict) and not isinstance(data.get("folder"), str):
        for key in _FILES:
            _seen_from(folder, data, key)
    for name, key in (
        ("data", "function"),
        ("model", "module"),
        ("features", "module"),
    ):  # the user's code lies beside the file
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
