"""Why settings cannot be used: what pydantic found, as an error that names the key, the value and the remedy."""

import difflib
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from incrowd.errors import ConfigError

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


def explained(error: ValidationError, kind: type[BaseModel]) -> ConfigError:
    """The first problem; a key that is not known comes before one that is missing, for it may be that one misspelt."""
    keys = set(known_keys(kind))
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
    names: list[str] = []
    for place, step in enumerate(location):
        misspelt = unknown and place == len(location) - 1
        if isinstance(step, str) and (misspelt or ".".join([*names, step]) in keys):
            names.append(step)
        elif isinstance(step, int) and names:
            names[-1] += f"[{step}]"
    return ".".join(names)


def _nearest(field: str, keys: set[str], *, alternative: str) -> str:
    if field in keys:
        return f"{alternative!r} has no such key"
    section, _, name = field.rpartition(".")
    here = sorted(key for key in keys if key.rpartition(".")[0] == section)
    # The same name in another section, rather than a name like it here, rather than a name like it elsewhere.
    for candidates, likeness in ((sorted(keys), 1.0), (here, 0.6), (sorted(keys), 0.75)):
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


def known_keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of a section and of those in it, with dots between."""
    for name, field in section.model_fields.items():
        yield prefix + name
        for inner in _sections(field.annotation):
            yield from known_keys(inner, f"{prefix}{name}.")
