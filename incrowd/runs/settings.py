"""From a TOML file and `--set key=value` to a `Config`; every error names the key, the value and the remedy."""

import difflib
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from pydantic import BaseModel, ValidationError

from incrowd.errors import ConfigError
from incrowd.runs.config import CommonSections, Config

DEMONSTRATION = Path(__file__).with_name("demonstration.toml")
"""The run that needs no file: the embedded digits."""

C = TypeVar("C", bound=CommonSections)

_BARE = re.compile(r"[A-Za-z][A-Za-z0-9_./ -]*")
_REMEDIES = {
    "bool_type": "give true or false",
    "finite_number": "give a finite number",
    "float_type": "give a number",
    "greater_than_equal": "give a whole number of at least 1",
    "int_type": "give a whole number",
    "missing": "it has no default: state it",
    "model_type": "it is a section: give keys in it",
    "string_type": "give a text in quotes",
    "tuple_type": "give a list",
}


def load(path: Path | str | None = None, *, overrides: Sequence[str] = (), data: Path | str | None = None) -> Config:
    """The config in a file, with `key=value` overrides and another data folder; without a file, the demonstration.

    Edge cases: as `tables` and `parse`; a run of silos (`privacy.unit` is "record") is refused.
    """
    return parse(tables(path, overrides=overrides, data=data))


def tables(
    path: Path | str | None = None, *, overrides: Sequence[str] = (), data: Path | str | None = None
) -> dict[str, Any]:
    """What a file says, with `key=value` overrides and another data folder; without a file, the demonstration.

    An override has the type that TOML gives to its value; a plain word needs no quotes. A relative path in the file is
    seen from the file, one in an override or in `data` from the working directory; the files of a table are seen from
    its folder, where one is named.

    Edge cases: a file that cannot be read or is not TOML: `ConfigError`.
    """
    source = DEMONSTRATION if path is None else Path(path)
    found = _read(source)
    moved = data is not None or any(override.partition("=")[0].strip() == "data.folder" for override in overrides)
    _make_absolute(found, source.parent, files=not moved)
    for override in overrides:
        _put(found, override)
    if data is not None:
        section = found.setdefault("data", {})
        if isinstance(section, dict) and section.get("name", "digits") != "digits":
            section["folder"] = str(data)
    _make_absolute(found, Path.cwd(), files=True)
    return found


@overload
def parse(found: Mapping[str, object] | str) -> Config: ...


@overload
def parse(found: Mapping[str, object] | str, kind: type[C]) -> C: ...


def parse(found: Mapping[str, object] | str, kind: type[CommonSections] = Config) -> CommonSections:
    """The config of a kind that TOML tables spell, or the JSON that `model_dump_json` wrote.

    Edge cases: an unknown key, a value of the wrong type, a key that is missing: `ConfigError`.
    """
    try:
        return kind.model_validate_json(found) if isinstance(found, str) else kind.model_validate(found)
    except ValidationError as error:
        raise _explained(error, set(known_keys(kind))) from error


def parse_json(text: str) -> Config:
    """The config that `Config.model_dump_json` wrote."""
    return parse(text)


def known_keys(section: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Every key of a section and of those in it, with dots between."""
    for name, field in section.model_fields.items():
        yield prefix + name
        for inner in _sections(field.annotation):
            yield from known_keys(inner, f"{prefix}{name}.")


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
    ("features", "cache"),
    ("privacy", "ledger"),
    ("privacy", "witness"),
)
_FILES = ("file", "test_file")


def _make_absolute(found: dict[str, Any], folder: Path, *, files: bool) -> None:
    """Paths are seen from this folder; so are the `files` of a table that names no folder for them."""
    for name, key in _PATHS:
        _seen_from(folder, found.get(name), key)
    data = found.get("data")
    if files and isinstance(data, dict) and not isinstance(data.get("folder"), str):
        for key in _FILES:
            _seen_from(folder, data, key)


def _seen_from(folder: Path, section: object, key: str) -> None:
    if isinstance(section, dict) and isinstance(section.get(key), str):
        section[key] = str(folder.resolve() / section[key])


def _put(found: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *sections, name = key.strip().split(".")
    if not equals or not name:
        raise ConfigError(field="set", value=override, remedy="write section.key=value, say local.learning_rate=0.1")
    table = found
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


def _explained(error: ValidationError, keys: set[str]) -> ConfigError:
    """The first problem; a key that is not known comes before one that is missing, for it may be that one misspelt."""
    problems = error.errors(include_url=False)
    problem = min(problems, key=lambda one: one["type"] != "extra_forbidden")
    context = problem.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, ConfigError):  # raised by a section of ours
        return cause
    unknown = problem["type"] == "extra_forbidden"
    field = _dotted(problem["loc"], keys, unknown=unknown)
    value = None if problem["type"] == "missing" else problem["input"]
    if unknown:
        remedy = _nearest(field, keys, alternative=str(problem["loc"][-2:][0]))
    elif problem["type"] == "union_tag_invalid":
        name = "name" if field in ("data", "features") else "kind"
        field, value = f"{field}.{name}", context["tag"]
        remedy = f"choose from {context['expected_tags']}"
    elif problem["type"] == "literal_error":
        remedy = f"choose from {context['expected']}"
    else:
        remedy = _REMEDIES.get(problem["type"], problem["msg"])
    return ConfigError(field=field, value=value, remedy=remedy)


def _dotted(location: tuple[int | str, ...], keys: set[str], *, unknown: bool) -> str:
    """The key in a file; the names of alternatives, which pydantic puts between, are left out."""
    found: list[str] = []
    for place, step in enumerate(location):
        misspelt = unknown and place == len(location) - 1
        if isinstance(step, str) and (misspelt or ".".join([*found, step]) in keys):
            found.append(step)
        elif isinstance(step, int) and found:
            found[-1] += f"[{step}]"
    return ".".join(found)


def _nearest(field: str, keys: set[str], *, alternative: str) -> str:
    if field in keys:
        return f"{alternative!r} has no such key"
    section, _, name = field.rpartition(".")
    here = sorted(key for key in keys if key.rpartition(".")[0] == section)
    # The same name in another section, rather than a name like it here, rather than a name like it elsewhere.
    for candidates, likeness in ((sorted(keys), 1.0), (here, 0.6), (sorted(keys), 0.6)):
        named = {key.rpartition(".")[2]: key for key in candidates}
        near = difflib.get_close_matches(name, named, n=1, cutoff=likeness)
        if near:
            return f"there is no such key; did you mean {named[near[0]]}?"
    return f"there is no such key; known are {', '.join(here)}"


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        for inner in typing.get_args(annotation):
            yield from _sections(inner)
