"""What an accelerator computes, beside what a processor does. Where there is none these tests are skipped."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from incrowd import Local
from incrowd.learning import CohortEngine, Execution, mlp, small_cnn
from incrowd.learning.contributions import halved_squares
from incrowd.learning.dpsgd.engine import BatchedRecords
from incrowd.learning.dpsgd.ghost import GhostClipping
from incrowd.learning.dpsgd.gradients import RecordGradients, VectorizedGradients
from incrowd.privacy.mechanism import RecordTraining
from incrowd.settings import Descent
from tests.attacks.test_alone import (
    CHAOS,
    CLIP,
    LOCALS,
    MANY,
    MODELS,
    ONE,
    STEP,
    alone_or_not,
    company,
    longest_move,
    made_up,
    summed,
)
from tests.learning.cohorts import RANDOMNESS, assert_close, clients, trained
from tests.learning.dpsgd.cases import KINDS, nothing, start, training
from tests.learning.own_models import CASES as OWN
from tests.test_federation import SEEDED, federation

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
THERE = Execution(device=DEVICE, chunk=8)
REMEMBERING = "remembering"


def names(engine: CohortEngine) -> list[str]:
    return [type(path).__name__ for path in engine.backends]


@pytest.mark.parametrize("steps", LOCALS)
@pytest.mark.parametrize("name", MODELS)
def test_clients_learn_what_they_learn_on_a_processor(name: str, steps: str) -> None:
    model, local, data = MODELS[name](), Local(learning_rate=0.3, **LOCALS[steps]), company("all sizes", zeros=0.5)
    there = [k for k in range(MANY) if len(data.examples(k))]
    weights = model.initial(RANDOMNESS)
    engine = CohortEngine(model, data, local, THERE)
    assert ("Vectorized" in names(engine)) == (name != REMEMBERING)
    assert_close(trained(engine, weights, there), trained(CohortEngine(model, data, local), weights, there))


@pytest.mark.parametrize("name", OWN)
def test_modules_of_all_kinds_learn_what_they_learn_on_a_processor(name: str) -> None:
    case, local = OWN[name], Local(learning_rate=0.2, batch_size=4, epochs=2)
    model, data = case.model(), case.clients((6, 4, 1, 9, 4))
    engine = CohortEngine(model, data, local, THERE, loss=case.loss)
    if name == "dropout":  # whose masks come from another generator there
        assert len(trained(engine, model.weights, range(5))) == 5
        return
    twin = trained(CohortEngine(model, data, local, loss=case.loss), model.weights, range(5))
    assert_close(trained(engine, model.weights, range(5)), twin)


STEPS = list(LOCALS)


@pytest.mark.parametrize(("name", "steps"), [(name, STEPS[i % len(STEPS)]) for i, name in enumerate(MODELS)])
def test_a_contribution_has_the_same_bits_in_every_company(name: str, steps: str) -> None:
    model, local = MODELS[name](), Local(learning_rate=0.3, **LOCALS[steps])
    expected, norm = alone_or_not(CohortEngine(model, company("nobody", zeros=0.5), local, THERE), [ONE])
    for kind in ("all sizes", "the same size", "others"):
        data = company(kind, zeros=0.5)
        engine = CohortEngine(model, data, local, THERE)
        there = [k for k in range(MANY) if len(data.examples(k))]
        for cohort in ([ONE], there, there[::-1]):
            found, length = alone_or_not(engine, cohort)
            assert np.array_equal(found, expected), kind
            assert length == norm, kind
        everyone, others = summed(engine, there).total, summed(engine, [k for k in there if k != ONE]).total
        own = summed(engine, [ONE]).total
        assert np.array_equal(everyone - others, own)
        assert np.array_equal(own, np.round(own / STEP * 2) * STEP / 2)


@pytest.mark.parametrize("name", [name for name in OWN if name != "dropout"])
def test_a_module_of_one_s_own_has_the_same_bits_in_every_company(name: str) -> None:
    case, found = OWN[name], []
    model, local = case.model(), Local(learning_rate=0.5, batch_size=4, epochs=3)
    for seed, sizes in enumerate(((0, 0, 13, 0, 0), (1, 30, 13, 4, 8), (64, 1, 13, 1, 2))):
        seeds = [seed] * len(sizes)
        seeds[2] = 0
        data = case.clients(sizes, seeds)
        engine = CohortEngine(model, data, local, THERE, loss=case.loss)
        there = [k for k, size in enumerate(sizes) if size]
        found += [trained(engine, model.weights, cohort)[2] for cohort in ([2], there)]
    assert np.abs(found[0]).max() > 0
    assert all(np.array_equal(one, found[0]) for one in found)


def pictures(sizes: Sequence[int], *, seed: int) -> Any:
    data = made_up(sizes, features=256, classes=10, zeros=(0.3,), seeds=(seed, 0))
    return replace(data, features=data.features.view(-1, 16, 16))


def test_images_through_convolutions_have_the_same_bits_in_every_company() -> None:
    local, found, model = Local(learning_rate=0.1, batch_size=7), [], small_cnn(side=16)
    for seed, sizes in enumerate(((0, 20), (33, 20), (5, 20))):
        engine = CohortEngine(model, pictures(sizes, seed=seed), local, replace(THERE, chunk=64))
        assert names(engine)[0] == "Vectorized"
        there = [k for k in range(2) if sizes[k]]
        found += [trained(engine, model.initial(RANDOMNESS), cohort)[1] for cohort in ([1], there)]
    twin = trained(CohortEngine(model, pictures((0, 20), seed=0), local), model.initial(RANDOMNESS), [1])
    assert all(np.array_equal(one, found[0]) for one in found)
    assert_close({1: found[0]}, twin)


def test_leaving_a_client_out_moves_the_sum_by_no_more_than_the_clip() -> None:
    sizes = (*[30] * 16, 33)
    data, model = made_up(sizes, features=64, classes=4, seeds=(2,)), mlp((64, 50, 50, 4))
    engine = CohortEngine(model, data, CHAOS, THERE)
    assert longest_move(lambda some: summed(engine, some).total, range(len(sizes)), (0, 7, 16)) <= CLIP


def test_a_second_engine_and_a_second_time_give_the_same_bits() -> None:
    model, data, local = mlp((24, 70, 5)), clients(), Local(learning_rate=0.3, batch_size=10, momentum=0.5)
    weights, found = model.initial(RANDOMNESS), []
    for _ in range(2):
        engine = CohortEngine(model, data, local, Execution(device="cuda"))
        found += [trained(engine, weights, range(8)) for _ in range(2)]
    for other in found[1:]:
        assert all(np.array_equal(found[0][k], other[k]) for k in range(8))


def test_norms_are_those_of_a_processor() -> None:
    rows = torch.randn(7, 1000, generator=torch.Generator().manual_seed(0))
    found = halved_squares(rows.cuda()).cpu()
    assert torch.equal(found, halved_squares(rows))
    torch.testing.assert_close(found, rows.double().square().sum(1), rtol=1e-12, atol=0)


def gradients_there(engine: BatchedRecords, weights: Tensor, settings: RecordTraining) -> RecordGradients:
    return engine._selection.gradients(weights.to(DEVICE), settings)


@pytest.mark.parametrize("kind", ["perceptron", "normalised", "convolutions"])
def test_a_record_has_the_same_bits_in_every_company(kind: str) -> None:
    build, _, records, _ = KINDS[kind]
    model, settings = build(), training(expected_batch=4.0, physical_batch=8)
    there = BatchedRecords(model, records, Descent(learning_rate=0.3), execution=Execution(device=DEVICE))
    way, seen = gradients_there(there, start(model), settings), set[tuple[float, bytes]]()
    features, labels = there.records.features.float(), there.records.labels
    for others in ([], [1, 2], [4, 5, 3, 6, 7], [1] * 7):
        for place in {0, len(others)}:
            chosen = [*others[:place], 0, *others[place:]]
            company = features[chosen] * 10.0 ** torch.arange(len(chosen), device=DEVICE).view(
                -1, *[1] * (features.ndim - 1)
            )
            company[place] = features[0]
            way.begin(len(chosen))
            norm = float(way.norms(company, labels[chosen])[place])
            factors = torch.zeros(len(chosen), dtype=torch.float64, device=DEVICE)
            factors[place] = 0.5
            way.add(factors)
            seen.add((norm, way.total.cpu().numpy().tobytes()))
    assert len(seen) == 1
    assert next(iter(seen))[0] > 0


@pytest.mark.parametrize("kind", ["linear", "perceptron", "images", "normalised", "convolutions", "shared path"])
def test_records_take_the_steps_that_they_take_on_a_processor(kind: str) -> None:
    build, _, records, _ = KINDS[kind]
    model, settings = build(), training(steps=3, clip_norm=0.5, physical_batch=7)
    there = BatchedRecords(model, records, Descent(learning_rate=0.3), execution=Execution(device=DEVICE))
    expected = {"linear": GhostClipping, "perceptron": GhostClipping, "images": GhostClipping}.get(
        kind, VectorizedGradients
    )
    assert type(gradients_there(there, start(model), settings)) is expected
    found: list[Any] = []
    for execution in (Execution(), Execution(device="cuda")):
        engine = BatchedRecords(model, records, Descent(learning_rate=0.3), execution=execution)
        found.append(engine.train(start(model), settings, noise=nothing, batches=RANDOMNESS.stream("batches")).weights)
    moved = float((found[0] - start(model)).norm())
    assert float((found[0] - found[1]).norm()) < 1e-4 * moved


def test_a_whole_run_learns_there_what_it_learns_here_again_and_again(tmp_path: Path) -> None:
    found = []
    for name, device in (("here", "cpu"), ("there", "cuda"), ("again", "cuda")):
        run = SEEDED.replaced(device=device)
        found.append(federation(run=run).train(tmp_path / name, progress=False))
    here, there, again = ([*result.module.state_dict().values()] for result in found)
    assert found[0].epsilon == found[1].epsilon
    assert all(map(torch.equal, there, again))
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
