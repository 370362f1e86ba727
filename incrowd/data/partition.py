"""The division of examples among clients: index lists, ways to draw them, and the clients' names.

The random ways simulate clients. They draw from the stream ``partition``, which nothing else uses.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.data.examples import Examples, named
from incrowd.errors import ConfigError, DataError

Indices = NDArray[np.int32] | NDArray[np.int64]
Sizes = NDArray[np.int64]

_SHARDS = 2  # of a client, as in the papers
_SAFE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9 ._-]{0,62}[A-Za-z0-9_-])?")
_RESERVED = re.compile(r"(the )?server|text|(con|prn|aux|nul|(com|lpt)[0-9])(\..*)?", re.IGNORECASE)
"""Names of the server, of the text in statements, and names that Windows reserves."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Partition:
    """Index lists of K clients, end to end: client k holds ``indices[offsets[k]:offsets[k + 1]]``.

    Guarantee: at least one client; each has at least one example; no index is negative.
    """

    offsets: Sizes = field(repr=False)
    indices: Indices = field(repr=False)

    def __post_init__(self) -> None:
        offsets, indices = self.offsets, self.indices
        if offsets.dtype != np.int64 or offsets.ndim != 1 or len(offsets) < 2:
            raise DataError("offsets must be int64, one more than there are clients, and there must be a client")
        if indices.dtype not in (np.int32, np.int64) or indices.ndim != 1:
            raise DataError(f"indices are {indices.dtype} of shape {indices.shape}: give one row of int32 or int64")
        if offsets[0] != 0 or offsets[-1] != len(indices):
            raise DataError(f"offsets must start at 0 and end at {len(indices)}, the number of indices")
        if self.sizes.min() <= 0:
            client = int(np.flatnonzero(self.sizes <= 0)[0])
            raise DataError(f"client {client} has no examples: leave it out, or give it at least one")
        if indices.min() < 0:
            place = int(np.flatnonzero(indices < 0)[0])
            raise DataError(f"client {self.holder(place)} holds the index {indices[place]}: give indices of at least 0")

    def __repr__(self) -> str:
        return f"Partition(clients={self.clients})"

    @classmethod
    def of(cls, lists: Sequence[ArrayLike]) -> "Partition":
        """The partition with these index lists, one for each client."""
        arrays = [np.asarray(rows) for rows in lists]
        for client, rows in enumerate(arrays):
            if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
                raise DataError(f"client {client} has {rows.dtype} of shape {rows.shape}: give a list of whole numbers")
        if not arrays:
            raise DataError("there is no client: give at least one list of indices")
        return end_to_end(np.concatenate(arrays).astype(np.int64), np.array([len(rows) for rows in arrays], np.int64))

    @classmethod
    def of_rows(cls, examples: int) -> "Partition":
        """One client for each example."""
        return end_to_end(np.arange(examples, dtype=index_type(examples)), np.ones(examples, np.int64))

    @property
    def clients(self) -> int:
        """The number of clients K."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Sizes:
        """The number of examples of each client."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> NDArray[np.int64]:
        """The client of each index."""
        return np.repeat(np.arange(self.clients), self.sizes)

    def client(self, k: int) -> Indices:
        """The indices of client k, a view."""
        if not 0 <= k < self.clients:
            raise ConfigError(field="client", value=k, remedy=f"give a number from 0 to {self.clients - 1}")
        return self.indices[self.offsets[k] : self.offsets[k + 1]]

    def holder(self, place: int) -> int:
        """The client with ``indices[place]`` in its list."""
        return int(np.searchsorted(self.offsets, place, side="right")) - 1


def index_type(examples: int) -> type[np.int32] | type[np.int64]:
    """The smaller type for indices: 10,000 clients of 600 examples take 24 MB."""
    return np.int32 if examples < 2**31 else np.int64


def end_to_end(indices: NDArray[Any], sizes: Sizes) -> Partition:
    """Give the first ``sizes[0]`` indices to client 0, the next ``sizes[1]`` to client 1, and so on."""
    return Partition(offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), indices=indices)


def iid(labels: NDArray[Any], *, clients: int, randomness: Randomness) -> Partition:
    """Each example to one client at random; sizes differ by at most one."""
    _check_enough(len(labels), clients, 1)
    members = np.arange(len(labels), dtype=index_type(len(labels)))
    return end_to_end(_shuffles(members, 1, _generator(randomness)).ravel(), _equal_sizes(len(labels), clients))


def sorted_shards(
    labels: NDArray[Any], *, clients: int, per_client: int | None = None, randomness: Randomness
) -> Partition:
    """Sort by label, cut into shards, and give each client two at random (McMahan et al. 2017, Geyer et al. 2017).

    Without `per_client` all examples are used, and the sizes of shards differ by at most one. With it each client gets
    that many examples: classes of a small set are repeated, shuffled each time, and shards of a large one are left out.
    """
    _validate.count(clients=clients)
    shards, generator = clients * _SHARDS, _generator(randomness)
    if per_client is None:
        _check_enough(len(labels), clients, _SHARDS)
        client_of_shard = generator.permutation(shards) // _SHARDS
        owner = np.repeat(client_of_shard, _equal_sizes(len(labels), shards))
        return _grouped(owner, clients, _sorted_repeats(labels, 1, generator))
    _validate.count(per_client=per_client)
    if per_client % _SHARDS:
        remedy = "give an even number: half of them come from each of two shards"
        raise ConfigError(field="per_client", value=per_client, remedy=remedy)
    size = per_client // _SHARDS
    order = _sorted_repeats(labels, _repeats(clients * per_client, len(labels)), generator)
    chosen = generator.permutation(len(order) // size)[:shards]
    cut = order[: len(order) // size * size].reshape(-1, size)
    return end_to_end(cut[chosen].ravel(), np.full(clients, per_client, np.int64))


def dirichlet(labels: NDArray[Any], *, clients: int, alpha: float, randomness: Randomness) -> Partition:
    """Divide each class among the clients in proportions from Dirichlet(alpha) (Yurochkin et al. 2019).

    Guarantee: each example has one client. The largest clients give one to each that would have none.
    """
    _validate.positive(alpha=alpha)
    _check_enough(len(labels), clients, 1)
    generator = _generator(randomness)
    owner = np.empty(len(labels), np.int64)
    for members in _classes(labels):
        counts = _in_proportion(len(members), generator.dirichlet(np.full(clients, alpha)))
        owner[generator.permutation(members)] = np.repeat(np.arange(clients), counts)
    order = generator.permutation(len(labels)).astype(index_type(len(labels)))
    order = order[np.argsort(owner[order], kind="stable")]
    return _grouped(_filled_up(np.bincount(owner, minlength=clients)), clients, order)


def by_column(column: ArrayLike) -> Partition:
    """One client for each distinct value of a column. Client k is the k-th value of `names_of` in sorted order."""
    values = names_of(column)
    if values.ndim != 1 or len(values) == 0:
        raise DataError(f"the user column has the shape {values.shape}: give one value for each example")
    if values.dtype.kind == "f" and np.isnan(values).any():
        place = int(np.flatnonzero(np.isnan(values))[0])
        raise DataError(f"the user column is NaN at example {place}: give every example a client")
    names, owner = np.unique(values, return_inverse=True)
    return _grouped(owner, len(names), np.arange(len(values), dtype=index_type(len(values))))


def names_of(column: ArrayLike) -> NDArray[Any]:
    """A column as a sortable array: objects, as in a frame, become texts."""
    values = np.asarray(column)
    if values.dtype.kind != "O" or values.ndim != 1:
        return values
    for place, value in enumerate(values):
        if str(value) in ("None", "nan", "NaT", "<NA>") and not isinstance(value, str):
            raise DataError(f"the user column is missing at example {place}: give every example a client")
    return values.astype(str)


def names_of_rows(examples: Examples) -> tuple[str, ...]:
    """A name for the client of each example, from its content: an absent client changes no other's name or turn."""
    parts = [*named(examples.features).values(), examples.labels]
    seen, names = Counter[str](), list[str]()
    for row in range(len(examples)):
        digest = blake2b(b"".join(part[row].tobytes() for part in parts), digest_size=16).hexdigest()
        seen[digest] += 1
        names.append(f"{digest}-{seen[digest]}")
    return tuple(names)


def check_safe(names: tuple[str, ...]) -> None:
    """Refuse names that cannot be names of folders on every system."""
    for name in names:
        if not _SAFE.fullmatch(name) or _RESERVED.fullmatch(name):
            remedy = (
                "it is to be a folder's: use up to 64 letters, digits, '-', '_', '.' and blanks, a letter or a digit "
                "first, not 'server'; or leave names out, and the silos are called silo-1, silo-2, ..."
            )
            raise ConfigError(field="names", value=name, remedy=remedy)
    if len({name.casefold() for name in names}) != len(names):
        remedy = "two of them are the same folder where case does not count: rename one"
        raise ConfigError(field="names", value=names, remedy=remedy)


def check_names(names: tuple[str, ...], *, actual: tuple[str, ...], public: bool) -> None:
    """Refuse names that are not the clients', in order.

    Guarantee: an error about private clients reveals neither their names nor their number.
    """
    check_safe(names)
    if tuple(sorted(names)) == actual and names != actual:
        raise ConfigError(field="names", value=names, remedy=f"give them in order: {', '.join(actual)}")
    if names != actual:
        shown = f": they are {', '.join(actual)}" if public else ", which are for their owner to see"
        raise ConfigError(field="names", value=names, remedy=f"these are not the clients in the table{shown}")


def _generator(randomness: Randomness) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64([int(word) for word in randomness.stream("partition").bits(4)]))


def _grouped(owner: NDArray[Any], clients: int, order: NDArray[Any]) -> Partition:
    """The partition that gives ``order[i]`` to ``owner[i]``."""
    return end_to_end(order[np.argsort(owner, kind="stable")], np.bincount(owner, minlength=clients))


def _filled_up(sizes: Sizes) -> NDArray[np.int64]:
    """The sorted owners, after the largest clients have filled up the empty ones."""
    kept = np.maximum(sizes, 1)
    for _ in range(int(kept.sum() - sizes.sum())):
        kept[np.argmax(kept)] -= 1
    owner = np.repeat(np.arange(len(sizes)), sizes)
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    owner[rank >= np.repeat(kept, sizes)] = np.repeat(np.arange(len(sizes)), np.maximum(kept - sizes, 0))
    return owner


def _check_enough(examples: int, clients: int, at_least: int) -> None:
    _validate.count(clients=clients)
    if clients * at_least > examples:
        raise DataError(f"{examples} examples are too few: {clients} clients need at least {clients * at_least}")


def _equal_sizes(total: int, parts: int) -> Sizes:
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


def _in_proportion(total: int, weights: NDArray[np.float64]) -> Sizes:
    """Whole numbers with this sum, each within one of its share."""
    cumulative = np.cumsum(weights)
    ends: Sizes = np.rint(cumulative / cumulative[-1] * total).astype(np.int64)
    return np.diff(ends, prepend=np.int64(0))


def _repeats(wanted: int, examples: int) -> int:
    if examples == 0:
        raise DataError("there are no examples to divide: give at least one label")
    return -(-wanted // examples)


def _classes(labels: NDArray[Any]) -> list[NDArray[Any]]:
    """The members of each class, in the order of the labels."""
    starts = np.unique(np.sort(labels), return_index=True)[1]
    return np.split(np.argsort(labels, kind="stable").astype(index_type(len(labels))), starts[1:])


def _shuffles(members: NDArray[Any], repeats: int, generator: np.random.Generator) -> NDArray[Any]:
    """Independent shuffles, one in each row."""
    return generator.permuted(np.tile(members, (repeats, 1)), axis=1)


def _sorted_repeats(labels: NDArray[Any], repeats: int, generator: np.random.Generator) -> NDArray[Any]:
    return np.concatenate([_shuffles(members, repeats, generator).ravel() for members in _classes(labels)])
