"""The specification of a model: plain data that a server sends and devices interpret, without running any of it."""

import hashlib
import json
import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import numpy as np
from pydantic import BaseModel, Field, FiniteFloat, ValidationError, model_validator
from scipy.sparse import csr_array, hstack

from incrowd import _validate
from incrowd._random import Floats
from incrowd.drawdiscard.fields import STRICT, CategoryField, Name, ResponseField, TableField, known
from incrowd.drawdiscard.glm import LINKS, MULTINOMIAL, AnyFloats, Glm
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism.device import Mechanism, NoiseName, Unit

LONGEST = 8_000_000  # characters of the longest specification
LARGEST = 4  # the default of `largest` for Laplace noise of a whole model
PLAUSIBLE = 16.0  # weights up to this are exact enough in float32 for every gamma that `check_rounding` accepts
ROUNDING = 2.0**-5  # the largest error of a weight's last place, in units of the noise's scale

Term = Annotated[tuple[Name, ...], Field(min_length=1, max_length=2)]
AnyField = Annotated[TableField, Field(discriminator="type")]
Positive = Annotated[FiniteFloat, Field(gt=0)]


class Specification(BaseModel):
    """A model, its fields, and the noise that hides a device.

    `terms` are the features: a field, or two fields whose features are multiplied, each with each. A device uses at
    most `examples` of its examples, and keeps the `largest` numbers of a gradient, by size. The pool has `instances`
    (k). `merge` is the share of an answer in the instance that it enters: 1 replaces it. `gamma` falls to
    gamma / (1 + epoch)^`falls_by`; an epoch has `falls_every` accepted answers. The defaults are the best measured
    (docs/draw-and-discard-measured.md).

    Guarantee: it is plain JSON (`to_json`, `from_json`); an unknown or missing key, or one of another type, is a
    `ConfigError` with its name. Equal specifications have equal JSON and equal fingerprints. Examples without a
    response do not count.
    """

    model_config = STRICT

    name: Annotated[str, Field(min_length=1, max_length=200)]
    fields: dict[Name, AnyField] = Field(min_length=1, max_length=10_000)
    response: Name
    terms: tuple[Term, ...] = Field(max_length=100_000)
    link: Literal["linear", "logistic", "multinomial", "poisson"]
    intercept: bool = True
    hidden: tuple[()] = ()  # a key without use that stays in the text, and so in every fingerprint
    gamma: Positive
    clip: Positive
    epsilon: Positive
    delta: Positive | None = None
    noise: NoiseName = "laplace"
    privacy: Unit = "model"
    bound: Literal["element", "norm"] = "norm"
    largest: Annotated[int, Field(ge=1)] | None = None
    instances: Annotated[int, Field(ge=1)] = 20
    merge: Annotated[FiniteFloat, Field(gt=0, le=1)] = 0.25
    falls_every: Annotated[int, Field(ge=1)] | None = None
    falls_by: Annotated[FiniteFloat, Field(ge=0, le=1)] = 0.5
    tail: None = None  # likewise
    examples: Annotated[int, Field(ge=1, le=1_000_000)] = 10

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The specification of a JSON text."""
        if len(text) > LONGEST:
            raise ConfigError(field="specification", value=f"{len(text)} characters", remedy=f"at most {LONGEST}")
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise _explained(error) from error

    @classmethod
    def of(cls, keys: Mapping[str, object]) -> Self:
        """The specification of these keys; `fields` may have the words for columns of tables."""
        fields = keys.get("fields")
        if isinstance(fields, Mapping):
            keys = {**keys, "fields": spelled(fields)}
        try:
            text = json.dumps(keys)  # `from_json` refuses numbers that are not finite
        except (TypeError, ValueError, RecursionError) as error:
            remedy = f"give plain JSON values: {error}"
            raise ConfigError(field="specification", value=type(error).__name__, remedy=remedy) from error
        return cls.from_json(text)

    @classmethod
    def from_formula(cls, formula: str, **keys: object) -> "Specification":
        """The specification of a formula, say ``opened ~ sender * words``, and all other keys.

        `response`, `terms` and `intercept` come from the formula. The default link follows from the response: logistic
        for a boolean, multinomial for a category, linear for a number.
        """
        from incrowd.drawdiscard.formula import read_formula

        fields = keys.get("fields")
        if not isinstance(fields, Mapping):
            raise ConfigError(field="fields", value=fields, remedy="describe the fields of the formula, by name")
        fields = spelled(fields)
        for key in ("response", "terms", "intercept"):
            if key in keys:
                raise ConfigError(field=key, value=keys[key], remedy="the formula states it; leave it out")
        stated = read_formula(formula, fields=list(fields))
        described = fields[stated.response]
        kind = described.get("type") if isinstance(described, Mapping) else None
        link = {"boolean": "logistic", "category": "multinomial"}.get(str(kind), "linear")
        its = {"response": stated.response, "terms": stated.terms, "intercept": stated.intercept}
        return cls.of({"link": link, **keys, "fields": fields, **its})

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with updates, checked like any other specification."""
        del deep  # a specification never changes
        return type(self).of(self.model_dump(mode="json") | dict(update or {}))

    def to_json(self) -> str:
        """The one text of this specification."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @cached_property
    def size(self) -> int:
        """The number of weights."""
        return (self._features + self.intercept) * self.outputs

    @cached_property
    def mechanism(self) -> Mechanism:
        """The bound and the noise of a contribution."""
        return Mechanism(
            size=self.size,
            clip=self.clip,
            epsilon=self.epsilon,
            delta=self.delta,
            noise=self.noise,
            privacy=self.privacy,
            bound=self.bound,
            repeats=self.repeats,
        )

    @cached_property
    def repeats(self) -> int:
        """The most released numbers that depend on one feature of a column.

        Each field of the column counts; a cross counts for each feature of the other field, and all count for each
        output.
        """
        times = Counter[str]()
        for term in self.terms:
            for place, name in enumerate(term):
                column = self.fields[name].column or name
                times[column] += self._widths[term[1 - place]] if len(term) == 2 else 1
        return self.outputs * max(times.values(), default=1)

    def epoch(self, accepted: int) -> int:
        """The epoch of the step size after this many accepted answers."""
        return 0 if self.falls_every is None else accepted // self.falls_every

    def gamma_of(self, epoch: int) -> float:
        """The step size of an epoch; it stays above `least_gamma`."""
        fallen = float(self.gamma * (1 + epoch) ** -self.falls_by)
        return max(fallen, min(self.gamma, least_gamma(self.mechanism)))

    @property
    def update_variance(self) -> float:
        """The variance that one update adds to a weight; for noise ``none``, that of Laplace noise."""
        return self.gamma**2 * self.mechanism.noise_variance

    @cached_property
    def model(self) -> Glm:
        """The model."""
        return Glm(features=self._features, link=LINKS[self.link], outputs=self.outputs, intercept=self.intercept)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of a device's table: first that of the response, then those of the terms."""
        return tuple(dict.fromkeys(column for column, _ in self.used.values()))

    @cached_property
    def used(self) -> dict[str, tuple[str, TableField]]:
        """The column and the field of each name in the response and the terms."""
        used = dict.fromkeys([self.response, *(name for term in self.terms for name in term)])
        return {name: (self.fields[name].column or name, self.fields[name]) for name in used}

    @property
    def predicted(self) -> ResponseField:
        """The field of the response."""
        field = self.fields[self.response]
        if not isinstance(field, ResponseField):
            remedy = "choose a number, an integer, a boolean or a category"
            raise ConfigError(field="response", value=self.response, remedy=remedy)
        return field

    @property
    def outputs(self) -> int:
        """The number of predictions for an example: one, or one for each class."""
        response = self.predicted
        return len(response.levels) if isinstance(response, CategoryField) else 1

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the features, in their order: ``field``, ``field=level``, or two of these with a colon."""
        by_field = {name: self.fields[name].columns(name) for name in self.used}
        return tuple(":".join(names) for term in self.terms for names in product(*(by_field[name] for name in term)))

    def encode(self, table: Mapping[str, Sequence[object]]) -> tuple[csr_array, Floats]:
        """Features and responses of a table's examples, by column, all within [0, 1]."""
        _check_columns(table, self.names)
        response, column = self.predicted, self.names[0]
        kept = known(response, table[column])
        rows = {name: [value for value, keep in zip(table[name], kept, strict=True) if keep] for name in self.names}
        if isinstance(response, CategoryField):
            responses = response.one_hot(rows[column])
        else:
            responses = response.encode(rows[column]).toarray()
        return self.features(rows, count=sum(kept)), responses

    def features(self, table: Mapping[str, Sequence[object]], *, count: int) -> csr_array:
        """The features of `count` examples, within [0, 1], for predictions."""
        _check_columns(table, self.names[1:])
        single = {name: field.encode(table[column]) for name, (column, field) in list(self.used.items())[1:]}
        blocks = [crossed(*(single[name] for name in term)) for term in self.terms]
        return hstack([csr_array((count, 0)), *blocks], format="csr")

    def describe(self) -> str:
        """The guarantee of a contribution and its limits, in plain words."""
        return (
            f"{self.mechanism.describe()} The neighbours are any two tables of one device: all of its examples may be "
            "others. A device that contributes again pays again."
        )

    def kept(self, gradient: AnyFloats) -> Floats:
        """A gradient with its `largest` numbers, and 0 for the others."""
        kept: Floats = with_largest(gradient.astype(np.float64), self.largest).astype(np.float64, copy=False)
        return kept

    @model_validator(mode="after")
    def _fill(self) -> "Specification":
        """Fill in the best noise, bound and `largest` for the unit."""
        stated = self.model_fields_set
        if self.privacy == "model" and not stated & {"noise", "bound", "largest", "delta"}:
            object.__setattr__(self, "noise", "direction")
        if "bound" not in stated and self.privacy == "feature":
            object.__setattr__(self, "bound", "element")
        if "largest" not in stated and (self.bound, self.noise) == ("norm", "laplace"):
            object.__setattr__(self, "largest", LARGEST)
        return self

    @model_validator(mode="after")
    def _check(self) -> "Specification":
        _check_names(self)
        categorical = isinstance(self.predicted, CategoryField)
        if categorical != (self.link == MULTINOMIAL.name):
            remedy = "a multinomial model has a category as its response, and no other model has"
            raise ConfigError(field="response", value=self.response, remedy=remedy)
        if categorical and self.outputs < 2:
            raise ConfigError(field="response", value=self.response, remedy="give it at least two levels")
        if self.size == 0:
            raise ConfigError(field="terms", value=self.terms, remedy="give a term, or an intercept")
        self.mechanism  # noqa: B018 - it checks noise, delta, privacy and bound together
        return self

    @cached_property
    def _widths(self) -> dict[str, int]:
        return {name: field.width for name, field in self.fields.items()}

    @property
    def _features(self) -> int:
        return sum(math.prod(self._widths[name] for name in term) for term in self.terms)


def crossed(first: csr_array, second: csr_array | None = None) -> csr_array:
    """Every feature times every feature of the second field, whose features change first; one field stays as it is."""
    if second is None:
        return first
    mine, theirs = np.arange(first.shape[1]), np.arange(second.shape[1])
    return first[:, np.repeat(mine, len(theirs))].multiply(second[:, np.tile(theirs, len(mine))]).tocsr()


def spelled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a specification, from the words for columns of tables; it leaves out ignored columns."""
    from incrowd.data.columns import columns_of
    from incrowd.data.schema import Category, Column, Ignored, Number, Text, YesNo

    found = dict(fields)
    for name, words in fields.items():
        if not isinstance(words, str | Mapping | Column) or (isinstance(words, Mapping) and "type" in words):
            continue
        match columns_of({name: words})[name]:
            case Ignored():
                del found[name]
            case Number(range=(low, high), whole=True):
                found[name] = {"type": "integer", "low": int(low), "high": int(high)}
            case Number(range=(low, high)):
                found[name] = {"type": "number", "low": float(low), "high": float(high)}
            case Category(levels=levels):
                found[name] = {"type": "category", "levels": list(levels)}
            case YesNo():
                found[name] = {"type": "boolean"}
            case Text(buckets=buckets):
                found[name] = {"type": "text", "buckets": buckets}
            case _:
                remedy = "devices have numbers with a range, levels, yes/no and text: state one of these"
                raise ConfigError(field=f"fields.{name}", value=words, remedy=remedy)
    return found


def read_specification(path: str | PathLike[str]) -> Specification:
    """The specification in a JSON or TOML file; it may have a `formula` for response, terms and intercept."""
    place = Path(path)

    def refused(remedy: str) -> ConfigError:
        return ConfigError(field="specification", value=str(path), remedy=remedy)

    if not place.is_file():
        raise refused("there is no such file")
    if place.stat().st_size > LONGEST:
        raise refused(f"give a file of at most {LONGEST} bytes")
    content, toml = place.read_bytes(), place.suffix == ".toml"
    try:
        keys = tomllib.loads(content.decode()) if toml else json.loads(content)
    except (ValueError, RecursionError) as error:
        raise refused(f"it is no {'TOML' if toml else 'JSON'}: {error}") from error
    if not isinstance(keys, dict):
        raise refused("give names and values, in braces")
    if "formula" in keys:
        formula = keys.pop("formula")
        if not isinstance(formula, str):
            raise ConfigError(field="formula", value=formula, remedy="give a text: response ~ first + second")
        return Specification.from_formula(formula, **keys)
    return Specification.of(keys)


def least_gamma(mechanism: Mechanism) -> float:
    """The smallest step whose noise float32 weights of up to `PLAUSIBLE` show.

    Rounding adds an error of up to 2^-24 times the weight to every residual. Up to a 32nd of the noise's scale that
    raises mean |r| and mean r^2 by less than a fiftieth of their standard deviation, even with 100,000 weights.
    """
    return PLAUSIBLE * 2.0**-24 / ROUNDING / mechanism.noise_scale


def check_rounding(mechanism: Mechanism, *, gamma: float) -> None:
    """Refuse a gamma whose noise float32 cannot show (see `least_gamma`), or is too large for a pool."""
    _validate.positive(gamma=gamma)
    least = least_gamma(mechanism)
    if gamma < least:
        remedy = f"float32 weights cannot show so little noise: give at least {least:.2g}, or a smaller epsilon"
        raise ConfigError(field="gamma", value=gamma, remedy=remedy)
    if gamma * mechanism.noise_scale > 1e20:
        raise ConfigError(field="gamma", value=gamma, remedy="no pool has room for such steps: give a gamma nearer 1")


def with_largest(gradient: AnyFloats, count: int | None) -> AnyFloats:
    """A gradient with its largest numbers by size, and 0 for the others.

    Sizes within a part in 2^30 count as equal, and stay or go together: other languages round in other places.
    """
    if count is None or count >= gradient.size:
        return gradient
    sizes = np.abs(gradient)
    least = np.partition(sizes, -count)[-count] * gradient.dtype.type(1 - 2.0**-30)
    return np.where(sizes >= least, gradient, gradient.dtype.type(0))


def _check_columns(table: Mapping[str, Sequence[object]], needed: Sequence[str]) -> None:
    for name in needed:
        if name not in table:
            raise DataError(f"the table has no field {name!r}: the specification needs {', '.join(needed)}")


def _check_names(specification: Specification) -> None:
    seen: set[frozenset[str]] = set()
    asked = specification.response
    if asked in specification.fields:
        asked = specification.fields[asked].column or asked
    for field, names in [("response", (specification.response,)), *(("terms", term) for term in specification.terms)]:
        for name in names:
            if name not in specification.fields:
                known_names = ", ".join(specification.fields)
                raise ConfigError(field=field, value=name, remedy=f"it is no field; the fields are {known_names}")
        if field == "terms" and asked in {specification.fields[name].column or name for name in names}:
            raise ConfigError(field=field, value=names, remedy="the response cannot be a feature")
        if field == "terms" and (len(set(names)) != len(names) or frozenset(names) in seen):
            raise ConfigError(field=field, value=names, remedy="give each term once, of different fields")
        seen.add(frozenset(names))


def _explained(error: ValidationError) -> ConfigError:
    """The first problem, in our words, without pydantic's steps between the names of keys."""
    problem = min(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return cause
    kinds = {kind.model_fields["type"].default for kind in get_args(TableField)}
    where = [str(step) for step in problem["loc"]]
    steps = [step for place, step in enumerate(where) if not (place == 2 and where[0] == "fields" and step in kinds)]
    name, text = _short(".".join(steps)), repr(problem["input"])
    field = (name if name.isprintable() else ascii(name)[1:-1]) or "specification"
    if problem["type"] == "missing":
        return ConfigError(field=field, value=None, remedy=_MISSING.get(steps[-1], "it has no default: state it"))
    unknown = problem["type"] == "extra_forbidden"
    value = problem["input"] if _short(text) == text else _short(text)
    return ConfigError(field=field, value=value, remedy="there is no such key" if unknown else problem["msg"])


def _short(text: str) -> str:
    """The start of a text for an error: a server's keys and values may be megabytes."""
    return text if len(text) <= 200 else f"{text[:200]}..."


_MISSING = {
    "gamma": "it has no default: with privacy for the whole model, 4 divided by the clip is a start; "
    "`incrowd ddml simulate` says what it would learn",
    "clip": "it has no default: 1 is a start with directions, 0.1 with noise; `incrowd ddml simulate` says what it "
    "would learn",
    "epsilon": "it has no default: state what a contribution may cost, say 2",
}
