"""Other records: what a record adds to a sum is, bit for bit, its own, in whatever batch and place it is."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from incrowd.learning import CROSS_ENTROPY, Model, as_loss, linear, mlp
from incrowd.learning.dpsgd.engine import BatchedRecords, Records
from incrowd.learning.dpsgd.ghost import GhostClipping
from incrowd.learning.execution import with_threads
from incrowd.settings import Descent
from tests.learning.cohorts import RANDOMNESS
from tests.learning.dpsgd.cases import one_of, training
from tests.learning.own_models import CASES as OWN_MODELS

pytestmark = pytest.mark.usefixtures("one_thread")  # on tiny matrices torch's threads wait for each other

CLASSES = 4


RECORD_MODELS = {
    "one layer": lambda: linear(30, CLASSES),
    "odd widths": lambda: mlp((7, 33, 3)),
    "wide": lambda: mlp((57, 200, 10)),
    "without bias": lambda: mlp((50, 2, CLASSES), bias=False),
    "layer norm": lambda: Model(
        nn.Sequential(nn.Linear(20, 9), nn.LayerNorm(9), nn.GELU(), nn.Linear(9, CLASSES)), fresh=True
    ),
}


@pytest.mark.parametrize("name", RECORD_MODELS)
def test_a_record_s_clipped_gradient_has_the_same_bits_in_every_batch(name: str) -> None:
    model = RECORD_MODELS[name]()
    (inputs, outputs), generator = _ends(model), np.random.default_rng(0)
    features = torch.from_numpy(generator.standard_normal((70, inputs)).astype(np.float32))
    labels = torch.from_numpy(generator.integers(0, outputs, 70))
    records = Records(features=features, labels=labels)
    ways = BatchedRecords(model, records, Descent(learning_rate=1.0))._selection
    for rows in (5, 64):
        found = []
        for others in ([], [1], [*range(1, 4)], [*range(1, 40)], [*range(1, 64)]):
            for place in {0, len(others) // 2, len(others)}:
                batch = [*others[:place], 0, *others[place:]][:rows]
                if 0 in batch:
                    gradients = ways.gradients(model.initial(RANDOMNESS), training(physical_batch=rows))
                    found.append(one_of(gradients, records, batch, 0))
        assert all(norm == found[0][0] and torch.equal(total, found[0][1]) for norm, total in found)


class Gate(nn.Module):
    """At weights that a model starts with, few records of it show how a processor rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(33, 50), nn.Linear(50, 11)

    def forward(self, examples: Tensor) -> Tensor:
        hidden: Tensor = self.a(examples)
        outputs: Tensor = self.b(torch.softmax(hidden, -1) * hidden)
        return outputs


class Shown(nn.Module):
    """What is shown or not, as numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 3), nn.Linear(3, 2)

    def forward(self, examples: Tensor) -> Tensor:
        outputs: Tensor = self.b(nn.functional.silu(self.a(examples.float())))
        return outputs


def from_zero() -> Model:
    """Its start hides what the function behind it rounds."""
    model = Model(nn.Sequential(nn.Linear(5, 9), nn.GELU()))
    for parameter in model.module.parameters():
        nn.init.zeros_(parameter)
    return Model(model.module)


def by_label(outputs: Tensor, labels: Tensor) -> Tensor:
    """Of a label of 0 there is no gradient at all."""
    return (labels * nn.functional.softplus(-outputs.view_as(labels))).mean()


def of_tokens() -> Model:
    return Model(
        nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(4, 11), nn.SiLU(), nn.Linear(11, 2)), fresh=True
    )


UNSEEN: dict[str, tuple[Callable[[], Model], str]] = {
    "a start of zeros": (from_zero, "numbers"),
    "a gate": (lambda: Model(Gate(), fresh=True), "numbers"),
    "tokens": (of_tokens, "tokens"),
    "masks": (lambda: Model(Shown(), fresh=True), "masks"),
    "a loss times its label": (
        lambda: Model(nn.Sequential(nn.Linear(5, 3), nn.SiLU(), nn.Linear(3, 1)), fresh=True),
        "shares",
    ),
}


@pytest.mark.parametrize("name", [name for name in OWN_MODELS if name != "dropout"])
def test_a_record_of_an_own_model_has_the_same_bits_in_every_batch(name: str) -> None:
    case = OWN_MODELS[name]
    model, records = case.model(), case.records(20)
    ways = BatchedRecords(model, records, Descent(learning_rate=1.0), loss=case.loss)._selection
    batches = [0], [3, 0], [0, 1, 2, 3], list(range(19, -1, -1))
    found = [one_of(ways.gradients(model.weights, training(physical_batch=20)), records, each, 0) for each in batches]
    assert found[0][0] > 0
    assert all(norm == found[0][0] and torch.equal(total, found[0][1]) for norm, total in found)


@pytest.mark.parametrize("block", [7, 31, 32, 200])
@pytest.mark.parametrize("name", UNSEEN)
def test_what_made_up_records_do_not_show_changes_no_bit_either(name: str, block: int) -> None:
    """Numbers that are left over at the end of a run are rounded in another way, which no trial is sure to see."""
    make, kind = UNSEEN[name]
    model, generator = make(), torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (70,), generator=generator)
    features = torch.randn(70, 33 if name == "a gate" else 5, generator=generator)
    if kind == "tokens":
        features = torch.randint(0, 5, (70, 1), generator=generator)
    if kind == "masks":
        features = features > 0
    loss = as_loss(by_label) if kind == "shares" else CROSS_ENTROPY
    labels = torch.rand(70, generator=generator) if kind == "shares" else labels
    records = Records(features=features, labels=labels)
    weights = model.initial(RANDOMNESS) + 0.7 * torch.randn(model.size, generator=generator)
    ways = BatchedRecords(model, records, Descent(learning_rate=1.0), loss=loss)._selection
    gradients = ways.gradients(weights, training(physical_batch=block, expected_batch=64.0))
    for one in range(6):
        others = [other for other in range(40) if other != one]
        found = []
        for place in (0, 1, len(others) // 2, len(others) - 2, len(others)):
            batch = [*others[:place], one, *others[place:]]
            found.append(one_of(gradients, records, batch, one))
        assert all(norm == found[0][0] and torch.equal(total, found[0][1]) for norm, total in found)


@pytest.mark.parametrize("bend", [nn.Sigmoid, nn.Tanh])
def test_however_many_threads_there_are_no_row_is_computed_in_two_ways(bend: type[nn.Module]) -> None:
    """Torch gives threads runs of numbers that begin within rows, and rounds what is left over of a run otherwise."""
    model = Model(nn.Sequential(nn.Linear(9, 160), bend(), nn.Linear(160, 2)), fresh=True)
    generator = torch.Generator().manual_seed(0)
    records = Records(features=torch.zeros(1, 9), labels=torch.zeros(1, dtype=torch.int64))
    engine = BatchedRecords(model, records, Descent(learning_rate=1.0))
    with with_threads(3):
        gradients = engine._selection.gradients(model.initial(RANDOMNESS) * 4, training(physical_batch=512))
        assert isinstance(gradients, GhostClipping)
        for _ in range(20):
            gradients.begin(512)
            same = torch.randn(1, 9, generator=generator).expand(512, -1)
            assert len(np.unique(gradients.norms(same, torch.zeros(512, dtype=torch.int64)).numpy())) == 1


def _ends(model: Model) -> tuple[int, int]:
    layers = [layer for layer in model.module.modules() if isinstance(layer, nn.Linear)]
    return layers[0].in_features, layers[-1].out_features


@pytest.mark.parametrize("one_of_so_many", [1, 13])  # records' numbers show it: a trial of two missed the latter
def test_where_a_processor_adds_up_by_place_records_go_another_way(
    one_of_so_many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records(features=torch.ones(4, 7), labels=torch.zeros(4, dtype=torch.int64))

    def selected() -> object:
        model = mlp((7, 33, 3))
        engine = BatchedRecords(model, records, Descent(learning_rate=1.0))
        return type(engine._selection.gradients(model.weights, training(physical_batch=64)))

    assert selected() is GhostClipping
    moody = torch.mm

    def by_place(left: Tensor, right: Tensor, *, out: Tensor) -> Tensor:
        moody(left, right, out=out)
        if int(left[0, 0].view(torch.int32)) % one_of_so_many == 0:
            out[1::2] *= 1 + 2.0**-23  # the control: a product whose odd rows are rounded in another way
        return out

    monkeypatch.setattr(torch, "mm", by_place)
    assert selected() is not GhostClipping
