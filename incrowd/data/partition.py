"""Who holds which example: index lists over shared arrays. `incrowd.data.partition` makes them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from incrowd import _validate
from incrowd._random import Randomness
from incrowd.errors import ConfigError, DataError

Indices = NDArray[np.int32] | NDArray[np.int64]
Sizes = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Partition:
    """Index lists of K clients, end to end: client k holds ``indices[offsets[k]:offsets[k + 1]]``.

    Guarantee: at least one client; every client has at least one example; no index is negative.

    Edge cases: an empty client, offsets that do not start at 0, rise and end at ``len(indices)``, another dtype:
    `DataError`. Two clients may hold the same example, and one client may hold it twice.
    """

    offsets: Sizes = field(repr=False)
    indices: Indices = field(repr=False)

    def __post_init__(self) -> None:
        if self.offsets.dtype != np.int64 or self.offsets.ndim != 1 or len(self.offsets) < 2:
            raise DataError("offsets must be int64, one more than there are clients, and there must be a client")
        if self.indices.dtype not in (np.int32, np.int64) or self.indices.ndim != 1:
            raise DataError(
                f"indices are {self.indices.dtype} of shape {self.indices.shape}: give one row of int32 or int64"
            )
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.indices):
            raise DataError(f"offsets must start at 0 and end at {len(self.indices)}, the number of indices")
        sizes = self.sizes
        if sizes.min() <= 0:
            client = int(np.flatnonzero(sizes <= 0)[0])
            raise DataError(f"client {client} has no examples: leave it out, or give it at least one")
        if self.indices.min() < 0:
            place = int(np.flatnonzero(self.indices < 0)[0])
            raise DataError(
                f"client {self.holder(place)} holds the index {self.indices[place]}: give indices of at least 0"
            )

    def __repr__(self) -> str:
        return f"Partition(clients={self.clients})"

    @classmethod
    def of(cls, lists: Sequence[ArrayLike]) -> "Partition":
        """From one list of indices for each client."""
        arrays = [np.asarray(rows) for rows in lists]
        for client, rows in enumerate(arrays):
            if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
                raise DataError(f"client {client} has {rows.dtype} of shape {rows.shape}: give a list of whole numbers")
        if not arrays:
            raise DataError("there is no client: give at least one list of indices")
        sizes = np.array([len(rows) for rows in arrays], np.int64)
        return end_to_end(np.concatenate(arrays).astype(np.int64), sizes)

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

    @property
    def nbytes(self) -> int:
        """Memory held by the index lists."""
        return self.offsets.nbytes + self.indices.nbytes

    def client(self, k: int) -> Indices:
        """The indices of client k, a view."""
        if not 0 <= k < self.clients:
            raise ConfigError(field="client", value=k, remedy=f"give a number from 0 to {self.clients - 1}")
        return self.indices[self.offsets[k] : self.offsets[k + 1]]

    def holder(self, place: int) -> int:
        """The client whose list holds ``indices[place]``."""
        return int(np.searchsorted(self.offsets, place, side="right")) - 1


def index_type(examples: int) -> type[np.int32] | type[np.int64]:
    """Four bytes an index where they suffice: 24 MB for 10,000 clients of 600."""
    return np.int32 if examples < 2**31 else np.int64


def end_to_end(indices: NDArray[Any], sizes: Sizes) -> Partition:
    """Give the first ``sizes[0]`` indices to client 0, the next ``sizes[1]`` to client 1, and so on."""
    return Partition(offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), indices=indices)


def iid(labels: NDArray[Any], *, clients: int, randomness: Randomness) -> Partition:
    """Every example to one client at random, sizes as equal as can be (they differ by at most one)."""
    _check_enough(len(labels), clients, 1)
    return by_sizes(labels, sizes=_equal_sizes(len(labels), clients), randomness=randomness)


def by_sizes(labels: NDArray[Any], *, sizes: ArrayLike, randomness: Randomness) -> Partition:
    """Random examples, as many for each client as ``sizes`` says (see also `lognormal_sizes`).

    Edge cases: sizes that sum to less leave examples unused; sizes that sum to more repeat the whole set, each time
    shuffled anew.
    """
    wanted = np.asarray(sizes)
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu" or len(wanted) == 0 or wanted.min() < 1:
        raise ConfigError(
            field="sizes", value=sizes, remedy="give a list with a whole number of at least 1 for each client"
        )
    total = int(wanted.sum())
    orders = _shuffles(
        np.arange(len(labels), dtype=index_type(len(labels))), _repeats(total, len(labels)), _generator(randomness)
    )
    return end_to_end(orders.ravel()[:total], wanted.astype(np.int64))


def lognormal_sizes(*, clients: int, examples: int, sigma: float, randomness: Randomness) -> Sizes:
    """Sizes of at least 1 that sum to ``examples``: 1 for each client, the rest in proportion to exp(sigma *
    normal).
    """
    _validate.non_negative(sigma=sigma)
    _check_enough(examples, clients, 1)
    exponents = sigma * randomness.stream("sizes").normals(clients)
    return 1 + _in_proportion(examples - clients, np.exp(exponents - exponents.max()))


def sorted_shards(
    labels: NDArray[Any],
    *,
    clients: int,
    per_client: int | None = None,
    shards_per_client: int = 2,
    randomness: Randomness,
) -> Partition:
    """Sort by label, cut into shards, give each client some at random (McMahan et al. 2017, Geyer et al. 2017).

    Without ``per_client`` the whole set is cut into ``clients * shards_per_client`` shards whose sizes differ by at
    most one. With it every client gets exactly so many examples. Where the set is too small for that, each class is
    repeated, every time shuffled anew; where it is too large, shards are left over at random.
    """
    _validate.count(clients=clients, shards_per_client=shards_per_client)
    shards = clients * shards_per_client
    generator = _generator(randomness)
    if per_client is None:
        _check_enough(len(labels), clients, shards_per_client)
        client_of_shard = generator.permutation(shards) // shards_per_client
        owner = np.repeat(client_of_shard, _equal_sizes(len(labels), shards))
        return _grouped(owner, clients, _sorted_repeats(labels, 1, generator))
    _validate.count(per_client=per_client)
    if per_client % shards_per_client:
        raise ConfigError(
            field="per_client", value=per_client, remedy=f"give a multiple of shards_per_client, {shards_per_client}"
        )
    size = per_client // shards_per_client
    order = _sorted_repeats(labels, _repeats(clients * per_client, len(labels)), generator)
    chosen = generator.permutation(len(order) // size)[:shards]
    cut = order[: len(order) // size * size].reshape(-1, size)
    return end_to_end(cut[chosen].ravel(), np.full(clients, per_client, np.int64))


def dirichlet(
    labels: NDArray[Any], *, clients: int, alpha: float, at_least: int = 1, randomness: Randomness
) -> Partition:
    """Divide each class among the clients in proportions drawn from Dirichlet(alpha) (Yurochkin et al. 2019).

    A small alpha gives clients of few classes and very unequal sizes, a large one gives equal clients.

    Guarantee: every example goes to exactly one client; a client that drew fewer than ``at_least`` is filled up by
    the largest.
    """
    _validate.positive(alpha=alpha)
    _validate.count(at_least=at_least)
    _check_enough(len(labels), clients, at_least)
    generator = _generator(randomness)
    owner = np.empty(len(labels), np.int64)
    for members in _classes(labels):
        counts = _in_proportion(len(members), generator.dirichlet(np.full(clients, alpha)))
        owner[generator.permutation(members)] = np.repeat(np.arange(clients), counts)
    order = generator.permutation(len(labels)).astype(index_type(len(labels)))
    order = order[np.argsort(owner[order], kind="stable")]
    return _grouped(_filled_up(np.bincount(owner, minlength=clients), at_least), clients, order)


def by_column(column: ArrayLike) -> Partition:
    """One client for each distinct value of a user column. Client k is the k-th of `names_of` it, sorted."""
    values = names_of(column)
    if values.ndim != 1 or len(values) == 0:
        raise DataError(f"the user column has the shape {values.shape}: give one value for each example")
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise DataError(
            f"the user column is NaN at example {int(np.flatnonzero(np.isnan(values))[0])}: give every example a client"
        )
    names, owner = np.unique(values, return_inverse=True)
    return _grouped(owner, len(names), np.arange(len(values), dtype=index_type(len(values))))


def names_of(column: ArrayLike) -> NDArray[Any]:
    """A user column as NumPy sorts it: what pandas and others hold as objects becomes texts.

    Edge cases: a value that is missing is a `DataError`.
    """
    values = np.asarray(column)
    if values.dtype.kind != "O" or values.ndim != 1:
        return values
    for place, value in enumerate(values.ravel()):
        if str(value) in ("None", "nan", "NaT", "<NA>") and not isinstance(value, str):
            raise DataError(f"the user column is missing at example {place}: give every example a client")
    return values.astype(str)


def _generator(randomness: Randomness) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64([int(word) for word in randomness.stream("partition").bits(4)]))


def _grouped(owner: NDArray[Any], clients: int, order: NDArray[Any]) -> Partition:
    """The partition that gives ``order[i]`` to ``owner[i]``."""
    return end_to_end(order[np.argsort(owner, kind="stable")], np.bincount(owner, minlength=clients))


def _filled_up(sizes: Sizes, at_least: int) -> NDArray[np.int64]:
    """Owners, sorted by client, of examples after the largest clients have given to those below ``at_least``."""
    kept = np.maximum(sizes, at_least)
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
    """Whole numbers that sum to ``total``, each within one of its share."""
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
