"""The sections that learning and the server's step read, and the base of all sections: exact types, named errors."""

import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from incrowd import _extensions, _validate
from incrowd.errors import ConfigError

Numbers = Annotated[tuple[float, ...], Field(strict=False)]
Range = Annotated[tuple[float, float], Field(strict=False)]
Words = Annotated[tuple[str, ...], Field(strict=False)]
Every = Annotated[int, Field(ge=1)]
Counts = Annotated[tuple[Every, ...], Field(strict=False)]
if TYPE_CHECKING:
    Whole = int  # a client's; `CohortEngine` refuses fractions
else:
    Whole = int | float

Compile = Literal["auto", "never", "always"]
"""Whether torch compiles the work of a client."""

GIVEN = "given"  # the name in settings of an object that a program hands over
LOSS_NAMES = ("cross entropy", "logistic", "squared", "poisson", "absolute", "huber")
LOCAL_ALGORITHMS = ("fedavg", "scaffold")
BUILT_IN = ("sgd", "momentum", "adam", "yogi")

_REMEDIES = {
    "bool_type": "give true or false",
    "finite_number": "give a finite number",
    "float_type": "give a number",
    "greater_than_equal": "give a whole number of at least 1",
    "int_type": "give a whole number",
    "missing": "it has no default: state it",
    "model_attributes_type": "it is a section: give keys in it",
    "model_type": "it is a section: give keys in it",
    "string_type": "give a text in quotes",
    "tuple_type": "give a list",
}


class Section(BaseModel):
    """A section of the file: exact types, finite numbers, no other keys, no changes afterwards."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    if not TYPE_CHECKING:  # so that types are checked by the fields

        def __init__(self, /, **values: Any) -> None:
            """Unusable values raise `ConfigError`."""
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise explained(error, type(self)) from error

        __init__.__pydantic_base_init__ = True  # sections in sections are pydantic's, which knows where they are

    def replaced(self, **changes: Any) -> Self:
        """The same with other values, checked as if they were all new."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)

    def named(self, section: str, *names: str) -> dict[str, Any]:
        """Some values by the names that they have in a file."""
        return {f"{section}.{name}": getattr(self, name) for name in names}

    def refuse(self, section: str, names: tuple[str, ...], remedy: str) -> None:
        """Refuse values other than the defaults (`ConfigError`)."""
        for name in names:
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                raise ConfigError(field=f"{section}.{name}", value=value, remedy=remedy)


class Descent(Section):
    """Stochastic gradient descent as torch.optim.SGD does it; the velocity starts at zero in each round."""

    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def model_post_init(self, context: Any, /) -> None:
        """Refuse numbers that make no sense."""
        _validate.positive(**self.named("local", "learning_rate"))
        _validate.non_negative(**self.named("local", "weight_decay"))
        _validate.below_one(**self.named("local", "momentum"))


def _known_loss(name: str) -> str:
    if name not in (*LOSS_NAMES, GIVEN):
        raise ConfigError(field="local.loss", value=name, remedy=f"choose from {', '.join(LOSS_NAMES)}")
    return name


LossName = Annotated[str, AfterValidator(_known_loss)]


class Local(Descent):
    """Training of a client in a round: gradient descent over its own examples, as torch.optim.SGD does it, from the
    weights of the server. With `privacy.unit` "record" it is DP-SGD, see below.

    It makes `epochs` passes over its examples: in batches of `batch_size`, in `batches` batches of equal sizes, or by
    default all at once. A client with fewer examples makes smaller or fewer batches. Every batch is one step along the
    gradient of its mean loss: g = gradient + weight_decay * w + proximal * (w - w_server). Then
    velocity = momentum * velocity + g, and w = w - learning_rate * velocity. With `optimizer` "adam" a step is that of
    torch.optim.Adam along g. With `algorithm` "scaffold" each step adds all clients' mean gradient and subtracts the
    client's own (`incrowd.learning.local_algorithms.Scaffold`).

    With `label_shares` a client adds log(share of the class among its labels + label_shares) to its logits: the right
    likelihood if clients' labels differ. With `label_distribution` the first round asks each client for its label
    distribution, and the published model adds the logarithm of the mean (`incrowd.learning.mean_query`).

    DP-SGD over the records of a silo takes `learning_rate`, `momentum`, `weight_decay` and `loss` alone. `epochs` and
    `batch_size`, the expected batch, may be fractions there. `physical_batch` is the number of records in memory.
    """

    optimizer: Literal["sgd", "adam"] = "sgd"
    algorithm: str = "fedavg"
    epochs: Whole = 1
    batch_size: Whole | None = None
    batches: int | None = None
    proximal: float = 0.0
    loss: LossName | None = None
    shuffle: bool = True
    label_shares: float | None = None
    label_distribution: float | None = None
    physical_batch: Every = 256

    def model_post_init(self, context: Any, /) -> None:
        """Refuse numbers that make no sense."""
        super().model_post_init(context)
        _validate.positive(**self.named("local", "epochs", *self._given("batch_size")))
        _validate.count(**self.named("local", *self._given("batches")))
        _validate.non_negative(**self.named("local", "proximal"))
        if self.optimizer == "adam" and self.momentum:
            raise ConfigError(field="local.momentum", value=self.momentum, remedy="Adam has its own: leave it out")
        if self.algorithm not in LOCAL_ALGORITHMS:
            _extensions.found("local_algorithms", self.algorithm, field="local.algorithm", known=LOCAL_ALGORITHMS)
        if self.algorithm == "scaffold" and self.optimizer != "sgd":
            raise ConfigError(field="local.optimizer", value=self.optimizer, remedy="scaffold takes steps of sgd")
        if self.label_shares is not None:
            _validate.positive(**self.named("local", "label_shares"))
        if self.label_distribution is not None:
            _validate.fraction(**self.named("local", "label_distribution"))
        if self.batches is not None and self.batch_size is not None:
            raise ConfigError(field="local.batches", value=self.batches, remedy="give batch_size or batches, not both")

    def check_whole(self) -> None:
        """Refuse parts of an epoch or of an example, which records alone may have."""
        _validate.count(**self.named("local", "epochs", *self._given("batch_size")))

    def _given(self, name: str) -> tuple[str, ...]:
        return () if getattr(self, name) is None else (name,)

    @property
    def plain(self) -> bool:
        """Whether a step is the gradient alone: no momentum, weight decay or proximal term."""
        return self.optimizer == "sgd" and self.momentum == self.weight_decay == self.proximal == 0


class ServerOptimizer(Section):
    """The server's step along a released mean, whose norm is at most the clip's.

    `sgd` adds learning_rate times the mean. `momentum` adds the velocity v = momentum * v + mean. `adam` and `yogi` are
    adaptive (Reddi et al. 2021), without bias correction; they need an `adaptivity` well above 0. With `decay` "linear"
    the rate of round t out of T is learning_rate * (1 - t / T).

    Guarantee: the step uses released means alone, so it costs no privacy.
    """

    kind: str = "sgd"
    learning_rate: float = 1.0
    momentum: float = 0.9
    adaptivity: float = 1e-3
    decay: Literal["none", "linear"] = "none"
    average: Literal["none", "tail"] = "none"

    def model_post_init(self, context: Any, /) -> None:
        """Refuse impossible numbers and unknown optimizers."""
        _validate.positive(**self.named("server", "learning_rate", "adaptivity"))
        _validate.below_one(**self.named("server", "momentum"))
        if not self.built_in:
            _extensions.found("server_optimizers", self.kind, field="server.kind", known=BUILT_IN)

    @property
    def built_in(self) -> bool:
        """Whether the optimizer is incrowd's."""
        return self.kind in BUILT_IN

    def rate(self, round: int, rounds: int) -> float:
        """The learning rate of a round, counted from 0."""
        return self.learning_rate * (1 - round / rounds if self.decay == "linear" else 1.0)

    def counts(self, round: int, rounds: int) -> bool:
        """Whether the published average includes the weights after this round."""
        return self.average == "tail" and round >= rounds // 2


def tagged(union: Any, key: str, default: str, *, own: str | None = None) -> Any:
    """One of several sections: the one that `key` names, `own` if that is a key, or the default."""

    def named(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {**value, key: str(value.get(key, own if own in value else default))}

    return Annotated[union, BeforeValidator(named), Field(discriminator=key)]


def explained(error: ValidationError, kind: type[BaseModel]) -> ConfigError:
    """The first problem that pydantic found, with key, value and remedy; unknown keys come before missing ones."""
    keys = set(known_keys(kind))
    problem = min(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
    context, sort = problem.get("ctx", {}), problem["type"]
    if isinstance(cause := context.get("error"), ConfigError):  # raised by a section of ours
        return cause
    field = _dotted(problem["loc"], keys, unknown=sort == "extra_forbidden")
    value = None if sort == "missing" else problem["input"]
    if sort == "extra_forbidden":
        remedy = _nearest(field, keys, alternative=str(problem["loc"][-2:][0]))
    elif sort == "union_tag_invalid":
        field, value = f"{field}.{'name' if field in ('data', 'features') else 'kind'}", context["tag"]
        remedy = f"choose from {context['expected_tags']}"
    elif sort == "literal_error":
        remedy = f"choose from {context['expected']}"
    else:
        remedy = _REMEDIES.get(sort, problem["msg"])
    return ConfigError(field=field, value=value, remedy=remedy)


def known_keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of a section and of those in it, with dots between."""
    for name, field in section.model_fields.items():
        yield prefix + name
        for inner in _sections(field.annotation):
            yield from known_keys(inner, f"{prefix}{name}.")


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        for inner in typing.get_args(annotation):
            yield from _sections(inner)


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
        if near := difflib.get_close_matches(name, named, n=1, cutoff=likeness):
            return f"there is no such key; did you mean {named[near[0]]}?"
    return f"there is no such key; known are {', '.join(here)}"
