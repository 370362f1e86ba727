"""Contract suites for extensions: each function raises `AssertionError` if an implementation breaks its contract.

>>> from incrowd.testing import check_clip
>>> check_clip(lambda rows, clip_norm: rows * 0)

They draw from fixed seeds. A statistical check fails for a right implementation once in a million runs at most.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from dp_accounting.dp_event import SampledWithoutReplacementDpEvent, SelfComposedDpEvent
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest

from incrowd._random import Floats, KeyedStream, SeededRandomness
from incrowd.errors import IncrowdError
from incrowd.privacy.account.accounting import Relation, delta_at, price
from incrowd.privacy.account.events import mechanisms
from incrowd.settings import Local
from incrowd.settings import ServerOptimizer as Settings
from incrowd.types import (
    Accountant,
    ClipFunction,
    DataSource,
    FeatureMap,
    LocalAlgorithm,
    Sampler,
    ServerOptimizer,
    Tracker,
)

__all__ = [
    "check_accountant",
    "check_clip",
    "check_data_source",
    "check_feature_map",
    "check_local_algorithm",
    "check_sampler",
    "check_server_optimizer",
    "check_tracker",
]

RARE = 1e-6  # the probability with which a statistical check fails for a right implementation
_RAISED = (ArithmeticError, AttributeError, IncrowdError, LookupError, OSError, RuntimeError, TypeError, ValueError)
_NOISES, _ROUNDS, _DELTA = (1.0, 4.0), (1, 30), 1e-5


def check_server_optimizer(make: Callable[[Settings], ServerOptimizer], *, size: int = 5) -> None:
    """Directions and state keep their names and sizes, are finite, and follow from means and state alone."""
    means = [*_normals(4, size), np.zeros(size), np.full(size, 1e3)]
    runs = [_walk(make(Settings()), means, size) for _ in range(2)]
    for (direction, state), (again, after) in zip(*runs, strict=True):
        _require(_same({"": direction} | state, {"": again} | after), "equal means and states give unequal steps")


def _walk(optimizer: ServerOptimizer, means: Sequence[Floats], size: int) -> list[tuple[Floats, Mapping[str, Floats]]]:
    first = state = dict(optimizer.init(size))
    _require(_same(state, dict(optimizer.init(size))), "two first states differ")
    walked = []
    for mean in means:
        given, before = mean.copy(), {name: array.copy() for name, array in state.items()}
        direction, after = optimizer.update(mean, state)
        _require(_same({"": mean} | state, {"": given} | before), "an update changes its arguments in place")
        _require(np.shape(direction) == (size,), f"a direction has the shape {np.shape(direction)}, not ({size},)")
        _require(_shapes(after) == _shapes(first), f"the state is {_shapes(after)}, and began as {_shapes(first)}")
        numbers = (direction, *after.values())
        _require(all(np.isfinite(one).all() for one in numbers), "a direction or state is not finite")
        walked.append((direction, after))
        state = dict(after)
    return walked


def check_accountant(accountant: Accountant) -> None:
    """Its figures are never below the tightest of incrowd's, fall with noise, and grow with rounds."""
    for name, relation, event in _events():
        by_noise = []
        for noise in _NOISES:
            by_rounds = []
            for rounds in _ROUNDS:
                whole = SelfComposedDpEvent(event(noise), rounds)
                epsilon = accountant.epsilon(whole, _DELTA, relation=relation)
                where = f"{name} of noise {noise:g}, {rounds} times, at delta {_DELTA:g}"
                least = price(whole, delta=_DELTA, relation=relation).epsilon
                _require(epsilon >= least * (1 - 1e-9), f"{where} costs {least:.6g}, and {epsilon:.6g} is claimed")
                delta = accountant.delta(whole, 1.0, relation=relation)
                floor = delta_at(whole, epsilon=1.0, relation=relation)
                _require(delta >= floor * (1 - 1e-9), f"{where}: delta at epsilon 1 is {floor:.6g}, not {delta:.6g}")
                by_rounds.append(epsilon)
            _require(_rises(by_rounds), f"{name} of noise {noise:g}: more rounds cost less, {by_rounds}")
            by_noise.append(by_rounds[0])
        _require(_rises(by_noise[::-1]), f"{name}: more noise costs more, {by_noise}")


def _events() -> list[tuple[str, Relation, Callable[[float], DpEvent]]]:
    zeroed, added, replaced = Relation.REPLACE_SPECIAL, Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
    return [
        ("Gaussian noise", zeroed, GaussianDpEvent),
        ("Laplace noise", added, LaplaceDpEvent),
        ("Gaussian noise on a Poisson sample", added, lambda z: PoissonSampledDpEvent(0.05, GaussianDpEvent(z))),
        ("Gaussian noise on a sample of a fixed size", replaced, _of_fixed_size),
    ]


def _of_fixed_size(noise: float) -> DpEvent:
    return SampledWithoutReplacementDpEvent(1000, 50, GaussianDpEvent(noise))


def check_sampler(sampler: Sampler, *, clients: int = 40, cohort: float = 8, rounds: int = 4000) -> None:
    """Its cohorts hold existing clients once each and follow from the stream and the round alone. They include each
    client as often as the sampler's event states, whether or not it was in the round before.
    """
    event = sampler.event(3.0, clients=clients, cohort=cohort)
    probability = _inclusion(event)
    cohorts = []
    for number in range(rounds):
        key = number.to_bytes(32)
        first, again = (
            sampler.sample(KeyedStream(key), clients=clients, cohort=cohort, round=number) for _ in range(2)
        )
        _require(np.array_equal(first, again), "the same stream and round give another cohort")
        members = np.asarray(first)
        inside = members.ndim == 1 and bool(((members >= 0) & (members < clients)).all())
        _require(inside, f"a cohort has members that are none of 0 to {clients - 1}")
        _require(len(np.unique(members)) == len(members), "a cohort has a client twice")
        cohorts.append(np.isin(np.arange(clients), members))
    taken = np.array(cohorts)
    pairs = taken[: rounds // 2 * 2 : 2] & taken[1::2]
    for what, found, chance in (
        ("takes part", taken, probability),
        ("takes part twice in a row", pairs, probability**2),
    ):
        counts = found.sum(axis=0)
        for client in (int(counts.argmin()), int(counts.argmax())):  # if any is odd, one of these two is
            count = int(counts[client])
            likely = binomtest(count, len(found), chance).pvalue if chance < 1 else float(count == len(found))
            problem = f"in {count / len(found):.4f} of the rounds, and the event states {chance:.4f}"
            _require(likely >= RARE / (2 * clients), f"client {client} {what} {problem}")
    mean = taken.sum(axis=1).mean()
    _require(0.8 * cohort <= mean <= 1.2 * cohort, f"the mean cohort is {mean:.2f}, and {cohort:g} is expected")


def _inclusion(event: DpEvent) -> float:
    """The probability with which a client takes part in a round, as its event states it."""
    ((one, times),) = mechanisms(event)
    _require(times == 1, "a round's event is a composition of several releases")
    if isinstance(one, PoissonSampledDpEvent):
        return float(one.sampling_probability)
    if isinstance(one, SampledWithoutReplacementDpEvent):
        return float(one.sample_size / one.source_dataset_size)
    return 1.0


def check_clip(clip: ClipFunction, *, clip_norm: float = 1.5, size: int = 6) -> None:
    """Its rows are finite and within the bound, each follows from its own contribution alone, and nothing changes the
    arguments. incrowd enforces the bound whatever a clip returns; a clip that fails here loses contributions.
    """
    rows = np.concatenate(
        [_normals(8, size) * scale for scale in (1e-200, 1e-3, 1.0, 1e3, 1e150)] + [np.zeros((2, size))]
    )
    given = rows.copy()
    clipped = np.asarray(clip(rows, clip_norm))
    _require(np.array_equal(rows, given), "it changes the contributions in place")
    _require(clipped.shape == rows.shape, f"it returns {clipped.shape} for {rows.shape}")
    _require(bool(np.isfinite(clipped).all()), "it returns numbers that are not finite")
    longest = max(math.hypot(*row) for row in clipped)
    _require(longest <= clip_norm * (1 + 1e-9), f"it returns a norm of {longest:.6g}, and its bound is {clip_norm:g}")
    alone = np.concatenate([np.asarray(clip(row[None], clip_norm)) for row in rows[::-1]])[::-1]
    _require(np.array_equal(alone, clipped), "a contribution's result depends on other contributions")


def check_data_source(source: DataSource, **arguments: Any) -> None:
    """Two readings give the same clients and examples; clients have names, finite numbers and examples of one form."""
    clients, again = source(**arguments), source(**arguments)
    _require(clients, "it gives no client")
    _require(list(clients) == list(again), "two readings give other clients, or another order")
    forms = set()
    for name, examples in clients.items():
        _require(name, f"{name!r} is no name of a client")
        features, labels = map(np.asarray, examples)
        _require(len(features) == len(labels) > 0, f"{name} has {len(features)} features and {len(labels)} labels")
        _require(features.dtype.kind in "biuf" and np.isfinite(features).all(), f"{name} has features without a number")
        equal = np.array_equal(features, again[name][0]) and np.array_equal(labels, again[name][1])
        _require(equal, f"two readings give other examples of {name}")
        forms.add((features.shape[1:], features.dtype, labels.shape[1:]))
    _require(len(forms) == 1, f"clients have examples of several forms, {forms}")


def check_feature_map(feature_map: FeatureMap, examples: ArrayLike) -> None:
    """Features are finite, a row for each of a few made-up `examples`, and follow from that example alone, in any call.
    Nothing changes the arguments, and the name stays.
    """
    from incrowd.data.examples import Examples
    from incrowd.learning.features.feature_map import from_callable
    from incrowd.learning.features.transform import transform

    values = np.ascontiguousarray(examples, np.float32)
    given, name = values.copy(), feature_map.name
    _require(str(name).strip(), "it has no name")
    labels = np.zeros(len(values), np.float32)

    def features(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        examples = Examples(features=rows, labels=labels, classes=None)
        return np.asarray(transform(from_callable(feature_map, name=name), examples).features)

    with _no_error():
        one, other, turned = features(values), features(values), features(values[::-1].copy())
    _require(np.array_equal(one, other), "the same examples have other features in another call")
    _require(np.array_equal(one, turned[::-1]), "an example has other features after other examples")
    feature_map(values)
    _require(np.array_equal(values, given), "it changes the examples in place")
    _require(feature_map.name == name, "its name changes")


def check_local_algorithm(make: Callable[[Local], LocalAlgorithm], *, local: Local | None = None) -> None:
    """It trains clients with these settings: finite updates, each of them a function of that client alone, and as many
    further values as it says. It leaves the server's weights and what the server shares as they are.
    """
    import torch

    from incrowd.learning.engine import CohortEngine
    from incrowd.learning.inputs import ClientTensors
    from incrowd.learning.models import Model

    local = local or Local(learning_rate=0.1, batch_size=3, epochs=2)
    features, labels = torch.from_numpy(_normals(20, 3)).float(), torch.arange(20) % 2
    data = ClientTensors(
        features=features, labels=labels, offsets=np.array([0, 4, 11, 20]), indices=np.arange(20, dtype=np.int64)
    )
    module = torch.nn.Linear(3, 2)
    module.register_parameter("idle", torch.nn.Parameter(torch.ones(1)))  # its gradient is None
    model = Model(module)

    def updates(*clients: int) -> dict[int, Floats]:
        engine = CohortEngine(model, data, local, algorithm=make(local))
        shared = torch.from_numpy(0.01 * _normals(1, engine.size - model.size)[0]).float()
        start, found = torch.cat([model.weights, shared]), dict[int, Floats]()
        for chunk in engine.train(start, clients, randomness=SeededRandomness(seed=0), round=0):
            found |= dict(zip(chunk.clients, chunk.rows(), strict=True))
        return found

    with _no_error():
        together, alone = updates(0, 1, 2), updates(2) | updates(1) | updates(0)
    _require(all(np.isfinite(row).all() for row in together.values()), "an update is not finite")
    _require(_same(together, alone), "a client's update depends on the clients before it, or changes in another call")
    _require(any(row.any() for row in together.values()), "no client moves the weights")


def check_tracker(make: Callable[[Path], Tracker]) -> None:
    """It hears complete, stopped and resumed runs, with rounds that were not measured and rounds that were lost. It
    changes no argument in place.
    """
    from incrowd.runs.folder import Record

    settings = {"rounds": 3, "clients": 9, "noise_multiplier": 1.5, "config": {"run": {"report_every": 1}}}
    records = [
        Record(round=0, epsilon=0.1, clip_norm=1.0, noise_std=0.1),
        Record(round=1, epsilon=0.2, accuracy=0.5, loss=0.7, seconds=0.1, clients_per_second=90.0),
        Record(round=2, epsilon=0.3, lost=True),
    ]
    for past, summary in ((0, {"accuracy": 0.5, "loss": None}), (1, None), (2, {}), (3, {})):
        told = copy.deepcopy((settings, records[:past], summary))
        with TemporaryDirectory() as folder, _no_error():
            tracker = make(Path(folder))
            tracker.start(*told[:2])
            for record in records[past:]:
                tracker.round(record)
            tracker.end(told[2])
        _require(told == (settings, records[:past], summary), "it changes what it hears in place")


def _normals(rows: int, size: int) -> Floats:
    return SeededRandomness(seed=0).stream("contract").normals(rows * size).reshape(rows, size)


@contextmanager
def _no_error() -> Iterator[None]:
    try:
        yield
    except _RAISED as error:
        raise AssertionError(f"{type(error).__name__}: {error}") from error


def _require(holds: object, problem: str) -> None:
    if not holds:
        raise AssertionError(problem)


def _shapes(arrays: Mapping[str, Floats]) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(array) for name, array in arrays.items()}


def _same(some: Mapping[Any, Floats], others: Mapping[Any, Floats]) -> bool:
    return some.keys() == others.keys() and all(np.array_equal(some[name], others[name]) for name in some)


def _rises(values: Sequence[float]) -> bool:
    return all(after >= before * (1 - 1e-9) for before, after in pairwise(values))
