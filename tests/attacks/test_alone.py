"""Other clients: what a client contributes is, bit for bit, its own, whoever and whatever is trained beside it.

Neighbours, chunks, threads and order change nothing, whatever module, inputs and labels there are.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from incrowd import Local
from incrowd._random import Floats
from incrowd.learning import (
    ClientTensors,
    CohortEngine,
    Contributions,
    Execution,
    Model,
    backends,
    linear,
    mlp,
    modules,
)
from incrowd.learning.backends.backend import ClientRound, MakeBackend, Task
from incrowd.learning.backends.loop import Loop
from incrowd.learning.contributions import ShortenedSum, Shortening
from incrowd.privacy.mechanism.clipping import FixedClip
from tests.learning.cohorts import RANDOMNESS, trained
from tests.learning.own_models import CASES as OWN_MODELS

pytestmark = pytest.mark.usefixtures("one_thread")  # on tiny matrices torch's own threads wait for each other


CLIP = 1.0
STEP = 2.0**-19  # of the sum's grid; the clip bound is 1


def made_up(
    sizes: Sequence[int], *, features: int, classes: int, zeros: Sequence[float] = (0.0,), seeds: Sequence[int] = (0,)
) -> ClientTensors:
    """Clients whose examples depend on their number, size, seed and share of zeros alone (given in turns)."""
    several = []
    for number, size in enumerate(sizes):
        share = zeros[number % len(zeros)]
        generator = np.random.default_rng((seeds[number % len(seeds)], number))
        own = generator.standard_normal((size, features)) * (generator.random(features) >= share)
        several.append((own * (generator.random(own.shape) >= share), generator.integers(0, classes, size)))
    return ClientTensors(
        features=torch.from_numpy(np.concatenate([own for own, _ in several]).astype(np.float32)),
        labels=torch.from_numpy(np.concatenate([labels for _, labels in several])),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        indices=np.arange(sum(sizes)),
    )


def summed(engine: CohortEngine, cohort: Sequence[int], *, round: int = 0) -> ShortenedSum:
    how = Shortening(bound=CLIP, parts=None, factors=FixedClip(clip_norm=CLIP).factors)
    weights = engine.model.initial(RANDOMNESS)
    return engine.train_and_sum(weights, cohort, how, randomness=RANDOMNESS, round=round)


def longest_move(sum_of: Callable[[Sequence[int]], Floats], cohort: Sequence[int], leavers: Sequence[int]) -> float:
    """How far the sum moves when one client leaves, at most."""
    everyone = sum_of(cohort)
    return max(float(np.linalg.norm(everyone - sum_of([k for k in cohort if k != one]))) for one in leavers)


# The attack: chaotic local training amplifies a difference in the last bit until the contribution is another one.
SIZES = (*[30] * 16, 33)
CHAOS = Local(learning_rate=2.0, epochs=200)


def padded_to_the_longest(data: ClientTensors, model: Model, cohort: Sequence[int]) -> Floats:
    """The broken twin: clients train in full batches that are filled up, with weight 0, to the cohort's longest."""
    width = max(len(data.examples(k)) for k in cohort)
    total = np.zeros(model.size)
    for client in cohort:
        module = model.with_weights(model.initial(RANDOMNESS)).train()
        own = torch.from_numpy(data.examples(client))
        features = torch.zeros(width, data.shape[0])
        features[: len(own)] = data.features[own]
        labels = torch.zeros(width, dtype=torch.int64)
        labels[: len(own)] = data.labels[own]
        weight = (torch.arange(width) < len(own)) / len(own)
        parameters: list[Tensor] = list(module.parameters())
        for _ in range(CHAOS.epochs):
            losses = nn.functional.cross_entropy(module(features), labels, reduction="none")
            gradients = torch.autograd.grad((losses * weight).sum(), parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, list(gradients), alpha=-CHAOS.learning_rate)
        learnt = torch.cat([p.detach().reshape(-1) for p in parameters]) - model.initial(RANDOMNESS)
        row = learnt.numpy().astype(np.float64)
        total += row * min(1.0, CLIP / float(np.linalg.norm(row)))
    return total


def test_leaving_a_client_out_moves_the_sum_by_no_more_than_the_clip() -> None:
    data, model = made_up(SIZES, features=64, classes=4, seeds=(2,)), mlp((64, 50, 50, 4))
    engine, cohort = CohortEngine(model, data, CHAOS), range(len(SIZES))
    moved = longest_move(lambda some: summed(engine, some).total, cohort, (0, 16))
    assert moved <= CLIP
    broken = longest_move(partial(padded_to_the_longest, data, model), cohort, (16,))
    assert broken > 1.2 * CLIP


# The class: every way to train, in every company.
FEATURES, CLASSES, ONE, MANY = 48, 4, 3, 9


def through(width: int, *between: nn.Module) -> Model:
    return Model(nn.Sequential(nn.Linear(FEATURES, width), *between, nn.Linear(width, CLASSES)), fresh=True)


class Remembering(nn.Module):
    """A module of the user's own that remembers whom it has seen, outside of its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.seen = 1.0

    def forward(self, examples: Tensor) -> Tensor:
        self.seen += 1.0
        outputs: Tensor = self.layer(examples) / self.seen
        return outputs


MODELS: dict[str, Callable[[], Model]] = {
    "linear": lambda: linear(FEATURES, CLASSES),
    "wide linear without bias": lambda: linear(FEATURES, 70, bias=False),
    "small": lambda: mlp((FEATURES, 17, CLASSES)),
    "narrow": lambda: mlp((FEATURES, 40, 180, CLASSES)),
    "wide": lambda: mlp((FEATURES, 190, 11, CLASSES)),
    "wide without bias": lambda: mlp((FEATURES, 190, CLASSES), bias=False),
    "tanh": lambda: through(170, nn.Tanh()),
    "sigmoid": lambda: through(33, nn.Sigmoid()),
    "large": lambda: through(700, nn.ELU()),
    "any": lambda: through(9, nn.LayerNorm(9), nn.Softplus()),
    "layer norm": lambda: through(9, nn.LayerNorm(9)),
    "wide layer norm": lambda: through(190, nn.LayerNorm(190), nn.Tanh()),
    "remembering": lambda: Model(Remembering(), fresh=True),
}
LOCALS: dict[str, dict[str, Any]] = {
    "batches of 7": {"batch_size": 7, "epochs": 2},
    "three batches": {"batches": 3},
    "all at once": {"epochs": 3},
    "momentum": {"batch_size": 7, "momentum": 0.9},
    "all terms": {"batches": 2, "momentum": 0.5, "weight_decay": 0.1, "proximal": 0.3},
    "proximal": {"batch_size": 4, "proximal": 0.5},
}


def company(kind: str, *, zeros: float) -> ClientTensors:
    """Client ONE as it always is, with others who are not there, or of all sizes, or of the other kind."""
    sizes = {
        "nobody": [0] * MANY,
        "all sizes": [5, 31, 12, 0, 64, 1, 30, 29, 33],
        "the same size": [30] * MANY,
        "others": [90, 2, 2, 0, 7, 50, 60, 3, 1],
    }[kind]
    sizes[ONE] = 30
    shares, seeds = [1 - zeros if kind == "others" else zeros] * MANY, [len(kind)] * MANY
    shares[ONE], seeds[ONE] = zeros, 0
    return made_up(sizes, features=FEATURES, classes=CLASSES, zeros=shares, seeds=seeds)


def alone_or_not(engine: CohortEngine, cohort: Sequence[int]) -> tuple[NDArray[np.float32], float]:
    """The contribution of ONE and its norm, as a cohort's chunks have them."""
    weights = engine.model.initial(RANDOMNESS)
    found = []
    for chunk in engine.train(weights, cohort, randomness=RANDOMNESS, round=0):
        if ONE in chunk.clients:
            place = chunk.clients.index(ONE)
            norm = float(chunk.norms()[place, 0])
            found.append((chunk.rows()[place], norm))
    (one,) = found
    return one


ZEROS = (0.0, 0.45, 0.8)  # in turns, so that every model and every way to take steps meets all of them
CASES = [(name, steps, ZEROS[(i + j) % 3]) for i, name in enumerate(MODELS) for j, steps in enumerate(LOCALS)]


@pytest.mark.parametrize(("name", "steps", "zeros"), CASES)
def test_a_contribution_has_the_same_bits_in_every_company(name: str, steps: str, zeros: float) -> None:
    model, local = MODELS[name](), Local(learning_rate=0.3, **LOCALS[steps])
    expected, norm = alone_or_not(CohortEngine(model, company("nobody", zeros=zeros), local), [ONE])
    for kind, chunk in (("all sizes", None), ("the same size", 2), ("the same size", 16), ("others", 5)):
        data = company(kind, zeros=zeros)
        engine = CohortEngine(model, data, local, Execution(chunk=chunk))
        there = [k for k in range(MANY) if len(data.examples(k))]
        for cohort in ([ONE], there, there[::-1]):
            found, length = alone_or_not(engine, cohort)
            assert np.array_equal(found, expected), (kind, chunk)
            assert length == norm, (kind, chunk)
        everyone, others = summed(engine, there).total, summed(engine, [k for k in there if k != ONE]).total
        own = summed(engine, [ONE]).total
        assert np.array_equal(everyone - others, own)
        assert np.array_equal(own, np.round(own / STEP * 2) * STEP / 2)


class FewExamples(Loop):
    """A way that takes only who has enough examples, and rounds in its own manner."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.takes = np.diff(task.data.offsets) >= 20

    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        for chunk in (found := super().train(weights, clients)):
            chunk.changes.mul_(1 + 2.0**-20)
        return found


def test_others_do_not_decide_about_a_client_s_way() -> None:
    """The way of all was one that takes all, so that a stranger with few examples changed everybody's last bits."""
    model = MODELS["small"]()

    def learnt(stranger: int, ways: Sequence[MakeBackend]) -> NDArray[np.float32]:
        data = made_up((30, stranger), features=FEATURES, classes=CLASSES, seeds=(0, 1))
        engine = CohortEngine(model, data, Local(learning_rate=0.3, batch_size=7), backends=ways)
        (chunk,) = engine.train(model.weights, [0], randomness=RANDOMNESS, round=0)
        row: NDArray[np.float32] = chunk.rows()[0]
        return row

    found = [learnt(stranger, (FewExamples, backends.loop.make)) for stranger in (0, 5, 30)]
    assert all(np.array_equal(one, found[0]) for one in found)
    assert not np.array_equal(learnt(0, [backends.loop.make]), found[0])  # else nothing could have been seen


@pytest.mark.parametrize("kind", ["nobody", "all sizes", "the same size", "others"])
def test_a_module_that_draws_has_draws_of_its_own_for_each_client(kind: str) -> None:
    """Its slopes depended on who was trained before."""
    model, data = through(9, nn.RReLU(), nn.Dropout1d(0.3)), company(kind, zeros=0.0)
    alone = CohortEngine(model, company("nobody", zeros=0.0), Local(learning_rate=0.3))
    engine = CohortEngine(model, data, Local(learning_rate=0.3))
    there = [k for k in range(MANY) if data.examples(k).size]
    before = torch.get_rng_state()
    for cohort in (there, there[::-1]):
        assert np.array_equal(alone_or_not(engine, cohort)[0], alone_or_not(alone, [ONE])[0])
    assert torch.equal(torch.get_rng_state(), before)


# What a program has told torch before must not reach the arithmetic that the bounds on rounding assume.
BEHIND_US: dict[str, Callable[[], object]] = {
    "matrix products in bfloat16": lambda: torch.set_float32_matmul_precision("medium"),
    "TF32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "small numbers are 0": lambda: torch.set_flush_denormal(True),
    "float64 by default": lambda: torch.set_default_dtype(torch.float64),
}


def settings() -> tuple[object, ...]:
    flushed = bool(torch.tensor([1e-40], dtype=torch.float32) * 1.0 == 0)
    return (
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.get_default_dtype(),
        flushed,
    )


@pytest.fixture
def as_before() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")
    torch.set_flush_denormal(False)
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("name", BEHIND_US)
@pytest.mark.parametrize("model", ["linear", "wide", "any", "wide layer norm"])
def test_what_torch_was_told_before_changes_nothing_and_stays(name: str, model: str) -> None:
    data, local = company("all sizes", zeros=0.0), Local(learning_rate=0.3, batch_size=7)
    engine = CohortEngine(MODELS[model](), data, local)
    weights = engine.model.initial(RANDOMNESS) * 1e-38  # most products of so small numbers are not normal numbers
    found = []
    for tell in (lambda: None, BEHIND_US[name]):
        tell()
        told = settings()
        chunks = engine.train(weights, [ONE], randomness=RANDOMNESS, round=0)
        found.append(np.concatenate([chunk.rows() for chunk in chunks]))
        assert settings() == told
    assert np.array_equal(found[0], found[1])


def test_casts_of_the_caller_s_stay_outside() -> None:
    data, local = company("all sizes", zeros=0.0), Local(learning_rate=0.3, batch_size=7)
    for model in ("wide", "any", "layer norm"):
        engine = CohortEngine(MODELS[model](), data, local)
        expected = summed(engine, [ONE]).total
        with torch.autocast("cpu"):
            assert np.array_equal(summed(engine, [ONE]).total, expected)
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16  # the control: it is on


OWN, SIZE = 2, 13
COMPANIES = ((0, 0, SIZE, 0, 0), (1, 30, SIZE, 4, 8), (SIZE, SIZE, SIZE, SIZE, SIZE), (64, 1, SIZE, 1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_MODELS)
def test_a_contribution_of_an_own_model_has_the_same_bits_in_every_company(name: str) -> None:
    case = OWN_MODELS[name]
    model, local = case.model(), Local(learning_rate=0.5, batch_size=4, epochs=3)
    found: list[Floats] = []
    for seed, sizes in enumerate(COMPANIES):
        seeds = [seed] * len(sizes)
        seeds[OWN] = 0
        data = case.clients(sizes, seeds)
        there = [k for k, size in enumerate(sizes) if size]
        for cohort in ([OWN], there, there[::-1]):
            engine = CohortEngine(model, data, local, Execution(chunk=2 if seed == 1 else None), loss=case.loss)
            found.append(trained(engine, model.weights, cohort)[OWN])
    assert np.abs(found[0]).max() > 0
    assert all(np.array_equal(one, found[0]) for one in found)


@pytest.mark.parametrize("name", ["GRU on tokens", "transformer, inputs by name", "tuned", "dropout"])
def test_processes_change_no_bit_of_a_sum(name: str) -> None:
    case = OWN_MODELS[name]
    model, local = case.model(), Local(learning_rate=0.5, batch_size=4)
    data, how = case.clients((5, 9, 1, 12)), Shortening(bound=1.0, parts=None, factors=FixedClip(clip_norm=1.0).factors)
    one, two = (
        CohortEngine(model, data, local, Execution(threads=several), loss=case.loss)
        .train_and_sum(model.weights, range(4), how, randomness=RANDOMNESS, round=0)
        .total
        for several in (1, 2)
    )
    assert np.array_equal(one, two)


class DropsLate(nn.Module):
    """Dropout that lets other threads run before it draws."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, examples: Tensor) -> Tensor:
        time.sleep(0.002)
        return nn.functional.dropout(self.layer(examples))


@pytest.mark.parametrize("alone", [True, False], ids=["in turn", "all at once, which is noticed"])
def test_another_thread_that_trains_leaves_the_masks_alone(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = Model(DropsLate(), fresh=True), made_up((9, 9, 9), features=FEATURES, classes=CLASSES)
    engines = [CohortEngine(model, data, Local(batch_size=3)) for _ in range(2)]
    weights, before = model.initial(RANDOMNESS), torch.get_rng_state()
    expected = trained(engines[0], weights, range(3))
    if not alone:
        monkeypatch.setattr(modules, "own_turn", nullcontext)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda engine: trained(engine, weights, range(3)), engines))
    same = all(np.array_equal(each[client], expected[client]) for each in found for client in expected)
    assert same == alone
    assert torch.equal(torch.get_rng_state(), before) or not alone
    torch.set_rng_state(before)
