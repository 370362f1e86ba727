"""The clients that the section `data` names: embedded digits, files, tables, parties, or a function of your own."""

import importlib
import os
import sys
import threading
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from incrowd import _validate
from incrowd._random import SeededRandomness
from incrowd.data.clients import Clients, PublicFacts, made_up_array, made_up_row, stand_in
from incrowd.data.examples import Examples, Labels, Split, hold_out
from incrowd.data.partition import Partition, dirichlet, iid, sorted_shards
from incrowd.data.reading import once
from incrowd.data.sources import load_digits, load_mnist
from incrowd.data.tables import read_table
from incrowd.errors import ConfigError
from incrowd.runs.config import CommonSections
from incrowd.runs.data_config import (
    NEVER_COUNTED,
    DigitsData,
    FunctionData,
    MnistData,
    Parties,
    PartitionedData,
    SourceData,
    Table,
)

if TYPE_CHECKING:
    from torch import Tensor

    from incrowd.learning.losses import Loss
    from incrowd.learning.models import Model

Object = TypeVar("Object")

_RAISED = (ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""Errors of functions that cannot do their work; our own errors pass through unchanged."""

_ONE_AT_A_TIME = threading.RLock()  # the path and the modules of Python belong to the whole process
_named: set[Path] = set()
"""Folders from which modules were imported."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Given:
    """Objects that a program hands over in place of names in settings. `start` is the whole state of a module of your
    own with which a run began that goes on.
    """

    data: Clients | None = None
    model: "Model | None" = None
    loss: "Loss | None" = None
    start: "Mapping[str, Tensor] | None" = None


NOTHING = Given()


@contextmanager
def section(name: str, **others: Container[str]) -> Iterator[None]:
    """Put the section's name before the field that an error names; `others` are sections with fields of their own."""
    try:
        yield
    except ConfigError as error:
        its = next((other for other, fields in others.items() if error.field in fields), name)
        raise ConfigError(field=f"{its}.{error.field}", value=error.value, remedy=error.remedy) from error


def federated_data(config: CommonSections, given: Given = NOTHING) -> Clients:
    """The clients and their examples."""
    wanted = config.data
    with section("data"):
        if isinstance(wanted, Table):
            return _table(wanted)
        if isinstance(wanted, Parties):
            return _in_place_of(wanted)
        if isinstance(wanted, PartitionedData):
            split = _split(wanted)
            return Clients.of(split, _partitioned(wanted, split.train.labels), public=wanted.public)
        if isinstance(wanted, SourceData):
            facts: PublicFacts = {"name": wanted.identity, "clients": wanted.clients, "public": wanted.public}
            data = Clients.from_source(wanted.source, arguments=wanted.arguments, classes=wanted.classes, **facts)
        elif isinstance(wanted, FunctionData):
            data = call(wanted.function, wanted.arguments, folder=wanted.folder, field="function")
            if not isinstance(data, Clients):
                remedy = f"it returns {type(data).__name__}: return incrowd.Clients"
                raise ConfigError(field="function", value=wanted.function, remedy=remedy)
        else:
            data = handed_over(given.data, "data")
        _check_stated(data)
        return data


def handed_over(given_object: Object | None, what: str) -> Object:
    """An object that a program has to hand over (`ConfigError` without it)."""
    if given_object is None:
        remedy = f"the run was begun by a program: let that go on, which has the {what}"
        raise ConfigError(field=what, value=None, remedy=remedy)
    return given_object


def whole_split(data: DigitsData | MnistData) -> Split:
    """The examples as they are, whatever is held out for validation."""
    return _split(data.model_copy(update={"validation": None}))


def mnist_folder(folder: str | None) -> Path:
    """The folder of the four files."""
    if folder is None:
        raise ConfigError(field="folder", value=None, remedy="name the folder that holds mnist/, or give --data DIR")
    inner = Path(folder) / "mnist"
    return inner if inner.is_dir() else Path(folder)


def enrolled(data: Parties) -> tuple[str, ...]:
    """The names of the parties whose enrolments lie in the folder, in order; departed parties keep their places."""
    folder = Path(data.enrolled)
    names = tuple(sorted({path.stem for kind in ("*.pub", "*.gone") for path in folder.glob(kind)}))
    if not names:
        remedy = "name the folder that holds the enrolments which parties sent, NAME.pub"
        raise ConfigError(field="enrolled", value=str(folder), remedy=remedy)
    return names


def processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_stated(data: Clients) -> None:
    """Refuse private clients of whom a fact is missing that a ledger needs."""
    if data.public:
        return
    if data.file is not None:
        remedy = "give it as incrowd.Table(file=..., ...): then all runs on it share one ledger, whoever began them"
        raise ConfigError(field="file", value=data.file.name, remedy=remedy)
    if not data.name:
        remedy = (
            'name the data, say name = "visits": all runs on them share one ledger, known by that name; or '
            "say public = True, where nobody is to be protected"
        )
        raise ConfigError(field="name", value=data.name, remedy=remedy)
    if data.declared is None:
        raise ConfigError(field="clients", value=None, remedy=f"{NEVER_COUNTED}, or say public = True")


def _split(data: DigitsData | MnistData) -> Split:
    """Examples for clients, and those that the server holds: the test examples, or some others, declared public."""
    if isinstance(data, DigitsData):
        split = load_digits()
    else:  # the folder is looked up once: the same files are read when the data are recognised
        split = once(("pictures", data.folder), lambda: load_mnist(mnist_folder(data.folder)))
    if data.validation is None:
        return split
    _validate.fraction(validation=data.validation)
    held_out = max(1, round(data.validation * len(split.train)))
    # They do not depend on how the others are divided, so that runs are compared on the same examples.
    return hold_out(split.train, name=split.name, test_examples=held_out, randomness=SeededRandomness(seed=0))


def _partitioned(data: PartitionedData, labels: Labels) -> Partition:
    source = SeededRandomness(seed=data.seed)
    if data.partition == "shards":
        return sorted_shards(labels, clients=data.clients, per_client=data.per_client, randomness=source)
    if data.alpha is not None:
        return dirichlet(labels, clients=data.clients, alpha=data.alpha, randomness=source)
    return iid(labels, clients=data.clients, randomness=source)


def _table(data: Table) -> Clients:
    folder = Path(data.folder or ".")
    return Clients.from_table(
        folder / data.file,
        columns=data.meaning(),
        test=None if data.test_file is None else folder / data.test_file,
        clients=data.clients,
        public=data.public,
        test_clients=data.test_clients,
        holdout_clients=data.holdout_clients,
        names=data.names,
    )


def _in_place_of(data: Parties) -> Clients:
    """Clients who hold nothing, in the place of the enrolled parties; and the public examples that the server holds."""
    names = enrolled(data)
    if data.shape:
        classes = data.classes if isinstance(data.classes, int) else None
        example = made_up_array(data.shape, data.type, classes=classes, scale=data.scale, offset=data.offset)
        return stand_in(example, names, name=data.federation)
    columns = data.meaning().resolved(())
    clients = stand_in(made_up_row(columns), names, name=data.federation, columns=columns)
    if data.test_file is None:
        return clients
    test: Examples = read_table(Path(data.folder or ".") / data.test_file, columns)[0]
    return replace(clients, test=test)


def call(source: str, arguments: Mapping[str, Any], *, folder: str | None, field: str) -> Any:
    """The result of a function of your own, "package:name", imported from a folder; its modules come before modules of
    the same name in folders that were used earlier.
    """
    function = _imported(source, folder=folder, field=field)
    try:
        return function(**arguments)
    except _RAISED as error:
        remedy = f"calling it failed: {type(error).__name__}: {error}"
        raise ConfigError(field=field, value=source, remedy=remedy) from error


def _imported(source: str, *, folder: str | None, field: str) -> Callable[..., Any]:
    package, colon, name = source.partition(":")
    if not (colon and package and name):
        raise ConfigError(field=field, value=source, remedy="write it as package:function")
    if package.split(".")[0] in sys.stdlib_module_names:
        # Python's own modules make neither clients nor modules of torch, but `subprocess:run` would do much else.
        raise ConfigError(field=field, value=source, remedy="it is Python's own: name a function of yours")
    with _importing_from(folder):
        try:
            function = getattr(importlib.import_module(package), name)
        except (ImportError, AttributeError) as error:
            where = f"{folder} or " if folder is not None else ""
            remedy = f"it cannot be imported from {where}where Python looks: {error}"
            raise ConfigError(field=field, value=source, remedy=remedy) from error
    if not callable(function):
        raise ConfigError(field=field, value=source, remedy="name a function; this is none")
    result: Callable[..., Any] = function
    return result


@contextmanager
def _importing_from(folder: str | None) -> Iterator[None]:
    """Let modules in a folder be found first, meanwhile, and none that came from another folder."""
    place = None if folder is None else Path(folder).resolve()
    with _ONE_AT_A_TIME:
        if place is not None:
            _forget(_named - {place}, has=place)  # first, because folders without __init__.py follow the path
            _named.add(place)
            sys.path.insert(0, str(place))
        try:
            importlib.invalidate_caches()
            yield
        finally:
            if place is not None and str(place) in sys.path:
                sys.path.remove(str(place))


def _forget(others: set[Path], *, has: Path) -> None:
    """Python keeps one module of a name: one from another folder would be taken for the one in this folder."""
    for first in {name.partition(".")[0] for name in sys.modules}:
        module = sys.modules.get(first)
        found = next(iter(getattr(module, "__path__", ())), getattr(module, "__file__", None))
        came_from = Path(found).parent if isinstance(found, str) else None
        if came_from in others and ((has / first).is_dir() or (has / f"{first}.py").is_file()):
            for name in [name for name in sys.modules if name.partition(".")[0] == first]:
                del sys.modules[name]
