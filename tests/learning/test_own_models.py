import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from incrowd import Local
from incrowd._random import SeededRandomness
from incrowd.errors import ConfigError, DataError
from incrowd.learning import CROSS_ENTROPY, SQUARED, CohortEngine, Loss, Model, as_loss
from incrowd.learning.dpsgd.engine import BatchedRecords, Records
from incrowd.learning.inputs import ClientTensors
from incrowd.learning.modules import working_copy
from incrowd.learning.trial import tried
from incrowd.privacy.mechanism.grid import RecordTraining
from incrowd.settings import Descent
from tests.learning.cohorts import RANDOMNESS, assert_close, trained, twin
from tests.learning.own_models import CASES, CLASSES, WIDTH, Case
from tests.reference import one_record

LOCAL: dict[str, Any] = {"learning_rate": 0.2, "batch_size": 5, "epochs": 2}
SIZES = (12, 3, 1, 9)


@pytest.mark.parametrize("terms", [{}, {"momentum": 0.5, "weight_decay": 0.1, "proximal": 0.2}], ids=["plain", "terms"])
@pytest.mark.parametrize("name", CASES)
def test_clients_learn_what_the_slow_twin_learns(name: str, terms: dict[str, Any]) -> None:
    case = CASES[name]
    model, data, local = case.model(), case.clients(SIZES), Local(**LOCAL, **terms)
    before = copy.deepcopy(model.module.state_dict())
    found = trained(CohortEngine(model, data, local, loss=case.loss), model.weights, range(len(SIZES)))
    reference = copy.deepcopy(model)
    if name == "frozen body":
        reference.module[0].eval()  # type: ignore[index]  # a module of unknown kind
    assert_close(found, twin(reference, data, local, model.weights, range(len(SIZES)), loss=case.loss))
    assert all(torch.equal(one, before[key]) for key, one in model.module.state_dict().items())
    assert model.module.training == reference.module.training


def test_every_client_and_round_has_dropout_of_its_own() -> None:
    case = CASES["dropout"]
    twins = case.clients((12,))
    data = replace(twins, offsets=np.array([0, 12, 24]), indices=np.tile(twins.indices, 2))
    engine = CohortEngine(case.model(), data, Local(learning_rate=0.2))
    torch.manual_seed(4)
    before = torch.get_rng_state()
    found = [trained(engine, case.model().weights, [0, 1], round=number) for number in (0, 1, 0)]
    assert torch.equal(torch.get_rng_state(), before)
    assert not np.array_equal(found[0][0], found[0][1])
    assert not np.array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][0], found[2][0])


class Draws(nn.Linear):
    """A module that draws from the process's generator, and that can be traced."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.rand(())


def test_to_try_a_module_that_draws_moves_no_generator_of_the_process() -> None:
    case = CASES["dropout"]
    data = case.clients((12,))
    model, before = Model(Draws(data.shape[0], 5)), torch.get_rng_state()
    trained(CohortEngine(model, data, Local(**LOCAL)), model.weights, [0])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["dropout"])
@pytest.mark.parametrize("make", [nn.Dropout, nn.Dropout2d])
def test_records_have_no_dropout(name: str, make: type[nn.Module]) -> None:
    records = CASES[name].records(4)
    for module in (CASES[name].module(), nn.Sequential(nn.Linear(WIDTH, CLASSES), make())):
        with pytest.raises(ConfigError, match=r"Dropout\w* at 1.*global generator, which no record has.*module.eval"):
            BatchedRecords(Model(module), records, Descent(learning_rate=0.1))
    BatchedRecords(Model(CASES[name].module().eval()), records, Descent(learning_rate=0.1))


RECORD_CASES = [name for name in CASES if name != "dropout"]


@pytest.mark.parametrize("name", RECORD_CASES)
def test_records_learn_what_the_slow_twin_learns(name: str) -> None:
    case = CASES[name]
    model, records = case.model(), case.records(9)
    training = RecordTraining(
        steps=3, sampling_prob=0.6, expected_batch=5.0, clip_norm=0.5, noise_multiplier=1.0, physical_batch=4,
        most_records=20,
    )  # fmt: skip
    descent, stream = Descent(learning_rate=0.3, momentum=0.5), SeededRandomness(seed=3)
    engine = BatchedRecords(model, records, descent, loss=case.loss)
    found = engine.train(model.weights, training, noise=lambda one: one, batches=stream.stream("b"))
    reference = copy.deepcopy(model)
    if name == "frozen body":
        reference.module[0].eval()  # type: ignore[index]  # a module of unknown kind
    expected = one_record.trained(
        reference, model.weights, records, training, descent=descent, loss=case.loss, noise=lambda one: one,
        batches=stream.stream("b"),
    )  # fmt: skip
    assert (found.weights - expected).norm() <= 1e-4 * (expected - model.weights).norm()
    assert found.dropped == 0
    made_up = engine.rehearsal(3)
    assert made_up.held == 3
    made_up.train(model.weights, training, noise=lambda one: one, batches=stream.stream("b"))


class Wrapped(nn.Module):
    """A linear layer with something done to its outputs."""

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)
        self.change = change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.layer(x))


class Output(dict[str, Tensor]):
    """What a library gives in place of a tensor."""

    @property
    def logits(self) -> Tensor:
        return self["logits"]


PLAIN = Case(module=lambda: nn.Linear(WIDTH, CLASSES), features=CASES["tied"].features)
REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "a tuple": (lambda x: (x, x), r"output is a tuple.: wrap it.*output\[0\]"),
    "a dict": (lambda x: {"a": x}, "output is a dict.: wrap it in a module whose forward returns the tensor"),
    "a library's": (lambda x: Output(logits=x), r"output is a Output.: wrap it.*output.logits"),
    "one number": (lambda x: x.sum(), "one row of float32 outputs for each"),
    "classes": (lambda x: x.argmax(1), "torch.int64 of the shape.*one row of float32"),
    "detached": (lambda x: x.detach(), "depends on nothing that is trained.*detached, by mistake"),
    "too few": (lambda x: x[:, :2], "'cross entropy' does not fit a model with 2 outputs"),
    "an image": (lambda x: x[..., None], r"'cross entropy' does not fit a model with \(3, 1\) outputs"),
    "an error": (lambda x: x @ x, r"the model cannot take (examples|records) of the shape \(8,\): mat1 and mat2"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_outputs_that_cannot_be_used_are_refused_with_the_remedy(what: str) -> None:
    change, message = REFUSED[what]
    data, model = PLAIN.clients([20]), Model(Wrapped(change))
    with pytest.raises((ConfigError, DataError), match=message):
        CohortEngine(model, data, Local(learning_rate=0.1))
    with pytest.raises((ConfigError, DataError), match=message):
        BatchedRecords(model, Records.of(data, 0), Descent(learning_rate=0.1))


def test_names_that_forward_does_not_have_are_refused() -> None:
    case = CASES["transformer, inputs by name"]
    data = case.clients([4])
    data.features["masks"] = data.features.pop("mask")
    with pytest.raises(
        DataError, match="the inputs are tokens, masks, and forward takes tokens, mask: name them alike"
    ):
        CohortEngine(case.model(), data, Local(learning_rate=0.1))


def test_a_module_of_one_argument_gets_the_dict() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, CLASSES)

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            outputs: Tensor = self.layer(batch["a"] + batch["b"])
            return outputs

    plain, model = PLAIN.clients([7]), Model(Whole())
    halves = {"a": plain.features / 2, "b": plain.features / 2}
    data = ClientTensors(features=halves, labels=plain.labels, offsets=plain.offsets, indices=plain.indices)
    local = Local(learning_rate=0.1, batch_size=3)
    found = trained(CohortEngine(model, data, local), model.weights, [0])
    assert_close(found, twin(Model(model.module.layer), plain, local, model.weights, [0]))  # type: ignore[arg-type]  # a module of unknown kind


def mixing(outputs: Tensor, labels: Tensor) -> Tensor:
    return ((outputs.mean(0) - outputs) ** 2).mean() + nn.functional.cross_entropy(outputs, labels)


@pytest.mark.parametrize(
    "loss",
    [
        as_loss(mixing),
        as_loss(lambda outputs, labels: nn.functional.cross_entropy(outputs, labels, reduction="sum")),
        as_loss(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]))),
    ],
    ids=["mixing", "sum", "weights of classes"],
)
def test_a_loss_that_mixes_records_is_refused_for_records_alone(loss: Loss) -> None:
    data, model = PLAIN.clients([20]), PLAIN.model()
    with pytest.raises(ConfigError, match="not the mean of what its records give alone"):
        BatchedRecords(model, Records.of(data, 0), Descent(learning_rate=0.1), loss=loss)
    CohortEngine(model, data, Local(learning_rate=0.1), loss=loss)


def test_a_module_that_mixes_records_is_refused_for_records() -> None:
    model, records = Model(Wrapped(lambda x: x - x.mean(0))), PLAIN.records(6)
    with pytest.raises(ConfigError, match=r"changes with the records around it.*LayerNorm"):
        BatchedRecords(model, records, Descent(learning_rate=0.1))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (as_loss(lambda outputs, _: outputs), "one differentiable number for a batch"),
        (as_loss(lambda outputs, _: torch.tensor(outputs.sum().item())), "one differentiable number"),
        (as_loss(lambda outputs, _: outputs[:, 7].mean()), "it fails for outputs.*and labels"),
        (as_loss(lambda outputs, labels: nn.functional.mse_loss(outputs[:, :1], labels.float())), "target size"),
    ],
    ids=["a vector", "a number", "an error", "a broadcast"],
)
def test_a_loss_that_cannot_be_used_is_refused(loss: Loss, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CohortEngine(PLAIN.model(), PLAIN.clients([5]), Local(learning_rate=0.1), loss=loss)


def test_records_may_not_draw_from_the_global_generator_nor_be_remembered() -> None:
    class Noisy(nn.Module):
        seen: Tensor

        def __init__(self, how: str) -> None:
            super().__init__()
            self.layer, self.how = nn.Linear(WIDTH, CLASSES), how
            self.register_buffer("seen", torch.zeros(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            if self.how == "remembers" and torch.is_grad_enabled():
                self.seen.add_(x.detach().sum(0))
            noise = torch.randn(x.shape) if self.how == "draws" and torch.is_grad_enabled() else 0.0
            outputs: Tensor = self.layer(x + noise)
            return outputs

    training = RecordTraining(
        steps=1, sampling_prob=1.0, expected_batch=5.0, clip_norm=0.5, noise_multiplier=1.0, physical_batch=4,
        most_records=20,
    )  # fmt: skip
    for how, message in (("draws", "global generator, which no record has"), ("remembers", "one record's data")):
        model = Model(Noisy(how))
        engine = BatchedRecords(model, PLAIN.records(3), Descent(learning_rate=0.1))
        with pytest.raises(ConfigError, match=message):
            engine.train(model.weights, training, noise=lambda one: one, batches=RANDOMNESS.stream("b"))


def test_losses_by_name_by_function_and_of_torch() -> None:
    assert as_loss("squared") is SQUARED
    assert as_loss(CROSS_ENTROPY) is CROSS_ENTROPY
    assert as_loss(nn.CrossEntropyLoss()) is CROSS_ENTROPY
    assert as_loss(nn.BCEWithLogitsLoss()).name == "logistic"
    smooth = as_loss(nn.CrossEntropyLoss(label_smoothing=0.1))
    outputs, labels = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    assert smooth.value(outputs, labels) == nn.CrossEntropyLoss(label_smoothing=0.1)(outputs, labels)
    assert as_loss(mixing).name == "mixing"
    numbers = torch.randn(4)
    assert as_loss(nn.MSELoss()).value(outputs[:, :1], numbers) == ((outputs[:, 0] - numbers) ** 2).mean()


def test_losses_that_cannot_be_used_are_refused() -> None:
    learned = nn.MSELoss()
    learned.scale = nn.Parameter(torch.ones(1))
    given: list[tuple[Any, str]] = [
        ("crossentropy", "did you mean 'cross entropy'"),
        ("nonsense", "give one of cross entropy, logistic"),
        (nn.MSELoss(reduction="sum"), r"MSELoss\(reduction='sum'\).*reduction=\"mean\""),
        (learned, "parameters of its own to train"),
        (3, "give a function of outputs and labels"),
    ]
    for loss, message in given:
        with pytest.raises(ConfigError, match=message):
            as_loss(loss)


def test_a_copy_to_train_has_its_frozen_parts_in_evaluation_mode() -> None:
    module = CASES["frozen body"].module()
    assert all(part.training for part in module.modules())
    for part in working_copy(module, torch.device("cpu")).modules():
        parameters = list(part.parameters())
        if parameters:
            assert part.training == any(one.requires_grad for one in parameters)


class Choosy(nn.Module):
    """Takes zeros, and no other numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if x.any():
            raise ValueError("not for such numbers")
        outputs: Tensor = self.layer(x)
        return outputs


def test_a_module_is_not_refused_for_made_up_numbers_that_it_is_not_for() -> None:
    features, labels = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)
    tried(Model(Choosy(), fresh=True), features, labels, CROSS_ENTROPY, each_alone=True, what="records")
