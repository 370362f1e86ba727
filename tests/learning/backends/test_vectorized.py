"""Many clients in the same operations, as an accelerator trains them: here on a processor, where all of it runs too."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from incrowd import Local
from incrowd.learning import CROSS_ENTROPY, POISSON, ClientTensors, CohortEngine, Execution, Model, backends, mlp
from incrowd.learning.backends import BACKENDS
from incrowd.learning.backends.backend import ClientRound, MakeBackend, Task
from incrowd.learning.backends.vectorized import Abreast, Size, Trial, plan, width_of
from incrowd.learning.inputs import draw_batches
from incrowd.learning.local_algorithms import algorithm_of
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, SIZES, assert_close, clients, trained, twin
from tests.learning.own_models import CASES as OWN

HERE: tuple[MakeBackend, ...] = (backends.vectorized.side_by_side, backends.loop.make)
COHORT = range(len(SIZES))
LOCALS: dict[str, dict[str, Any]] = {
    "batches of 10": {"batch_size": 10, "epochs": 2},
    "three batches": {"batches": 3},
    "all at once": {"epochs": 3},
    "momentum": {"batch_size": 7, "momentum": 0.9},
    "all terms": {"batches": 2, "momentum": 0.5, "weight_decay": 0.1, "proximal": 0.3},
    "label shares": {"batch_size": 10, "label_shares": 0.1},
}
MODELS: dict[str, Callable[[], Model]] = {
    "perceptron": lambda: mlp((FEATURES, 17, CLASSES)),
    "layer norm": lambda: Model(
        nn.Sequential(nn.Linear(FEATURES, 9), nn.LayerNorm(9), nn.Softplus(), nn.Linear(9, CLASSES)), fresh=True
    ),
}


def task_of(model: Model, data: ClientTensors, local: Local, execution: Execution | None = None) -> Task:
    return Task(
        model=model,
        loss=CROSS_ENTROPY,
        data=data,
        local=local,
        execution=execution or Execution(),
        outputs=(CLASSES,),
        algorithm=algorithm_of(local),
    )


def names(engine: CohortEngine) -> list[str]:
    return [type(path).__name__ for path in engine.backends]


@pytest.fixture
def to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a processor do it although it rounds by place: what is computed is the same to rounding."""
    monkeypatch.setattr(Trial, "_check_company", lambda *_: None)


@pytest.mark.usefixtures("to_rounding")
@pytest.mark.parametrize("chunk", [1, 3, 8])
@pytest.mark.parametrize("steps", LOCALS)
@pytest.mark.parametrize("model", MODELS)
def test_clients_side_by_side_learn_what_one_alone_learns(model: str, steps: str, chunk: int) -> None:
    one, data, local = MODELS[model](), clients(), Local(learning_rate=0.3, **LOCALS[steps])
    engine = CohortEngine(one, data, local, Execution(chunk=chunk), backends=HERE)
    assert names(engine) == ["Vectorized"]
    weights = one.initial(RANDOMNESS)
    found = trained(engine, weights, COHORT)
    assert_close(found, trained(CohortEngine(one, data, local, backends=[backends.loop.make]), weights, COHORT))


LEFT_ALONE = ("torch's loss", "dropout")


@pytest.mark.usefixtures("to_rounding")
@pytest.mark.parametrize("name", OWN)
def test_modules_of_all_kinds_learn_side_by_side_what_they_learn_alone(name: str) -> None:
    case, local = OWN[name], Local(learning_rate=0.2, batch_size=4, epochs=2)
    model, data = case.model(), case.clients((6, 4, 1, 9, 4))
    engine = CohortEngine(model, data, local, Execution(chunk=3), loss=case.loss, backends=HERE)
    assert names(engine) == (["Loop"] if name in LEFT_ALONE else ["Vectorized"])
    twin = CohortEngine(model, data, local, loss=case.loss, backends=[backends.loop.make])
    weights = model.initial(RANDOMNESS)
    assert_close(trained(engine, weights, range(5)), trained(twin, weights, range(5)))


# How many, how wide, and who stands still.


@pytest.mark.parametrize(
    "local", [Local(batch_size=10), Local(batches=3), Local(), Local(epochs=2, batch_size=7)], ids=str
)
@pytest.mark.parametrize("examples", [1, 2, 3, 5, 9, 10, 11, 17, 30, 64, 100, 601])
def test_a_plan_has_room_for_a_client_s_batches(local: Local, examples: int) -> None:
    drawn = draw_batches(examples, local, randomness=RANDOMNESS, round=0, client=0)
    assert drawn.width <= width_of(examples, local) < 1.25 * drawn.width + 1
    if local.batch_size is not None and examples >= local.batch_size:
        assert width_of(examples, local) == local.batch_size


@pytest.mark.usefixtures("to_rounding")
def test_a_group_is_of_clients_whose_own_batches_are_alike() -> None:
    engine = CohortEngine(
        mlp((FEATURES, CLASSES)), clients((5, 30, 5, 60, 29)), Local(), Execution(chunk=3), backends=HERE
    )
    assert [engine.backends[0].kind(client) for client in range(5)] == [5, 32, 5, 64, 32]
    assert engine._groups(range(5)) == [[0, 2], [1, 4], [3]]


def test_batches_are_filled_up_with_a_client_s_own_examples_that_count_for_nothing() -> None:
    data, local = clients((12, 5)), Local(batch_size=8)
    drawn = [draw_batches(size, local, randomness=RANDOMNESS, round=0, client=k) for k, size in enumerate((12, 5))]
    two = [ClientRound(client=k, round=0, batches=one, randomness=RANDOMNESS) for k, one in enumerate(drawn)]
    rows, shares = plan(task_of(mlp((FEATURES, CLASSES)), data, local), two, width=8)
    assert rows.shape == shares.shape == (2, 2, 8)
    for j in range(2):
        assert set(rows[:, j].ravel()) <= set(data.examples(j))
        assert sorted(rows[:, j][shares[:, j] > 0]) == sorted(data.examples(j))
    assert shares.sum(2) == pytest.approx(np.array([[1, 1], [1, 0]]))
    assert shares[1, 0].tolist() == pytest.approx([0.25] * 4 + [0] * 4)


def test_who_has_no_step_left_keeps_its_weights_whatever_the_gradient_is() -> None:
    data, local = clients((20, 5)), Local(learning_rate=0.5, batch_size=5, momentum=0.5)
    task = task_of(mlp((FEATURES, 3, CLASSES)), data, local)

    def gradients(parameters: list[Tensor], *_: Any) -> list[Tensor]:
        return [torch.full_like(one, torch.nan) for one in parameters]

    two = Abreast(task, Size(width=5, clients=2, gradients=gradients))
    two.begin([torch.ones(shape) for shape in task.model.layout.shapes], [None, None])
    two.shares[0] = 0.2
    with torch.no_grad():
        two.step(everyone=False)
    assert two.changes()[0].isnan().all()
    assert not two.changes()[1].any()


# Attack: an accelerator, or a module, that lets others change the last bits.


def _by_place(found: list[Tensor], _parameters: list[Tensor]) -> None:
    for one in found:
        one[1] *= 1 + 2.0**-23


def _by_the_others(found: list[Tensor], parameters: list[Tensor]) -> None:
    if float(parameters[0].abs().nan_to_num(posinf=1e30).max()) > 100:
        torch._foreach_mul_(found, 1 + 2.0**-23)


def _by_what_is_no_number(found: list[Tensor], parameters: list[Tensor]) -> None:
    if bool(parameters[0].isnan().any()):
        torch._foreach_mul_(found, 1 + 2.0**-23)


def _anew_each_time(found: list[Tensor], _parameters: list[Tensor]) -> None:
    torch._foreach_mul_(found, 1 + float(torch.randn(1)) * 2.0**-20)


def _wrong(found: list[Tensor], _parameters: list[Tensor]) -> None:
    torch._foreach_mul_(found, 1.01)


Mood = Callable[[list[Tensor], list[Tensor]], None]


@pytest.mark.parametrize("mood", [None, _by_place, _by_the_others, _by_what_is_no_number, _anew_each_time, _wrong])
def test_where_others_change_a_bit_clients_go_one_by_one(
    mood: Mood | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, local = mlp((FEATURES, 16, CLASSES)), Local(learning_rate=0.3, batch_size=16)
    whole = Trial.clients_at_once

    def moody(self: Trial) -> int:
        gradients = self.gradients

        def changed(parameters: list[Tensor], *given: Any) -> list[Tensor]:
            found = gradients(parameters, *given)
            if mood is not None:
                mood(found, parameters)
            return found

        self.gradients = changed
        try:
            return whole(self)
        finally:
            self.gradients = gradients

    monkeypatch.setattr(Trial, "clients_at_once", moody)
    with caplog.at_level(logging.WARNING):
        engine = CohortEngine(model, clients((32, 32)), local, Execution(chunk=2), backends=HERE)
    assert names(engine) == (["Vectorized"] if mood is None else ["Loop"])
    said = "not what they are one by one" if mood is _wrong else "by their place, by the others, or anew"
    assert (said in caplog.text) == (mood is not None)
    assert len(caplog.records) == (mood is not None)
    assert not any(character.isdigit() for record in caplog.records for character in record.getMessage())


# Attack: modules that are other functions side by side, or of batches that are filled up, or the second time.


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(FEATURES, CLASSES), 0

    def forward(self, examples: Tensor) -> Tensor:
        self.calls += 1
        outputs: Tensor = self.layer(examples)
        return outputs


class Measured(nn.Module):
    """Every example is measured by the largest of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, examples: Tensor) -> Tensor:
        outputs: Tensor = self.layer(examples / examples.abs().max())
        return outputs


class ByClass(nn.Module):
    """What follows a convolution depends on what the layer is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Conv2d(1, 2, 3), nn.Linear(2 * 22, CLASSES)

    def forward(self, examples: Tensor) -> Tensor:
        bent = self.layer(examples.view(-1, 1, 4, 6)[:, :, :3].repeat(1, 1, 1, 4)).flatten(1)
        outputs: Tensor = self.last(torch.relu(bent) if type(self.layer) is nn.Conv2d else bent)
        return outputs


class Refusal(Exception):  # of one's own, as people have them
    """What a module raises."""


class Choosy(nn.Module):
    """It is not for the numbers that are made up, and says so in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, examples: Tensor) -> Tensor:
        if len(examples) > 3 and examples.min() < -1:
            raise Refusal(f"there are {len(examples)} examples")
        outputs: Tensor = self.layer(examples)
        return outputs


ODD: dict[str, tuple[type[nn.Module], str]] = {
    "counting": (Counting, "remembers something"),
    "measured by the batch": (Measured, "not what they are one by one"),
    "by the class": (ByClass, "not what they are one by one"),
    "choosy": (Choosy, "Refusal"),
}


@pytest.mark.usefixtures("to_rounding")
@pytest.mark.parametrize("kind", ODD)
def test_odd_modules_go_another_way_whoever_else_there_is(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    make_module, said = ODD[kind]
    with caplog.at_level(logging.WARNING):
        for others in (5, 13, 31):
            data = clients((32, others), real=True)
            engine = CohortEngine(Model(make_module()), data, Local(), Execution(chunk=2), backends=HERE)
            assert type(engine._choice.of(0)).__name__ == "Loop"
    assert said in caplog.text
    assert not any(character.isdigit() for record in caplog.records for character in record.getMessage())


@pytest.mark.usefixtures("to_rounding")
def test_what_fills_a_batch_up_brings_nothing_into_it_that_is_not_there() -> None:
    """An example whose loss is no number filled up batches that it is not in: 0 times infinity."""
    features = torch.zeros(18, 2)
    features[:, 0], features[0, 0] = 1, 100
    data = ClientTensors(
        features=features, labels=torch.zeros(18), offsets=np.array([0, 18]), indices=np.arange(18, dtype=np.int32)
    )
    model, local = Model(nn.Linear(2, 1, bias=False)), Local(batches=2, learning_rate=1 / np.e)
    engine = CohortEngine(model, data, local, Execution(chunk=2), loss=POISSON, backends=HERE)
    assert names(engine) == ["Vectorized"]
    twin = CohortEngine(model, data, local, loss=POISSON, backends=[backends.loop.make])
    start, finite = torch.tensor([1.0, 0.0]), 0
    for number in range(8):
        found, expected = (trained(one, start, [0], round=number)[0] for one in (engine, twin))
        assert np.isfinite(found).all() == np.isfinite(expected).all()
        finite += bool(np.isfinite(expected).all())
    assert 0 < finite < 8


class Sum(nn.Module):
    """Two weights that are added have one gradient, which torch gives as one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.full((CLASSES, FEATURES), value)) for value in (0.1, -0.3))

    def forward(self, examples: Tensor) -> Tensor:
        return nn.functional.linear(examples, self.one + self.other)


@pytest.mark.usefixtures("to_rounding")
@pytest.mark.parametrize("paths", [HERE, BACKENDS, (backends.loop.make,)], ids=["together", "usual", "autograd"])
@pytest.mark.parametrize("terms", [{"weight_decay": 0.5}, {"proximal": 0.5}, {"weight_decay": 0.1, "momentum": 0.5}])
def test_weights_that_share_a_gradient_decay_alone(paths: Sequence[MakeBackend], terms: dict[str, float]) -> None:
    model, data = Model(Sum()), clients((8, 16))
    local = Local(learning_rate=0.3, batch_size=4, **terms)  # type: ignore[arg-type]  # counts are whole
    found = trained(CohortEngine(model, data, local, Execution(chunk=2), backends=paths), model.weights, [0, 1])
    assert_close(found, twin(model, data, local, model.weights, [0, 1]))


def test_on_a_processor_nobody_goes_this_way() -> None:
    task = task_of(mlp((FEATURES, CLASSES)), clients(), Local(batch_size=5))
    assert backends.vectorized.make(task) is None
