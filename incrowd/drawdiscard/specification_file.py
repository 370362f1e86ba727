"""A specification in a file: JSON as a server states it, or JSON or TOML as a person writes it, with a formula."""

import json
import tomllib
from os import PathLike
from pathlib import Path

from incrowd.drawdiscard.specification import LONGEST, Specification
from incrowd.errors import ConfigError


def read_specification(path: str | PathLike[str]) -> Specification:
    """The specification in a JSON or TOML file; with a `formula`, it states response, terms and intercept.

    Edge cases: a file that is not there, is too long, or is neither, is refused by its name (`ConfigError`), and so is
    what makes no sense in it.
    """
    place = Path(path)
    if not place.is_file():
        raise ConfigError(field="specification", value=str(path), remedy="there is no such file")
    if place.stat().st_size > LONGEST:
        raise ConfigError(field="specification", value=str(path), remedy=f"give a file of at most {LONGEST} bytes")
    content = place.read_bytes()
    toml = place.suffix == ".toml"
    try:
        keys = tomllib.loads(content.decode()) if toml else json.loads(content)
    except (ValueError, RecursionError) as error:
        kind = "TOML" if toml else "JSON"
        raise ConfigError(field="specification", value=str(path), remedy=f"it is no {kind}: {error}") from error
    if not isinstance(keys, dict):
        raise ConfigError(field="specification", value=str(path), remedy="give names and values, in braces")
    if "formula" in keys:
        formula = keys.pop("formula")
        if not isinstance(formula, str):
            raise ConfigError(field="formula", value=formula, remedy="give a text: response ~ first + second")
        return Specification.from_formula(formula, **keys)
    return Specification.of(keys) if toml else Specification.from_json(content)
