"""What a client contributes to an evaluation: shares of its own examples, never longer than the public bound."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from incrowd._random import Floats
from incrowd.data.examples import IGNORED
from incrowd.errors import ConfigError
from incrowd.learning import CROSS_ENTROPY, LOGISTIC, SQUARED, ClientTensors, Loss, Model, as_loss, linear
from incrowd.learning.scoring import Scorer, Scoring
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.clipping import FixedClip

FEATURES, CLASSES = 3, 4
MODEL = linear(FEATURES, CLASSES)
ALL = Scoring(loss_bound=3.0, classes=CLASSES)


def tensors(*, clients: int = 5, each: int = 7, seed: int = 2) -> ClientTensors:
    generator = np.random.default_rng(seed)
    count = clients * each
    return ClientTensors(
        features=torch.from_numpy(generator.normal(size=(count, FEATURES)).astype(np.float32)),
        labels=torch.from_numpy(generator.integers(0, CLASSES, count)),
        offsets=np.arange(clients + 1) * each,
        indices=generator.permutation(count),
    )


def scorer(data: ClientTensors, scoring: Scoring = ALL, **rest: Any) -> Scorer:
    given: dict[str, Any] = {"model": MODEL, "data": data, "scoring": scoring, "loss": CROSS_ENTROPY} | rest
    return Scorer(**given)


def weights(seed: int = 4) -> Floats:
    return np.random.default_rng(seed).normal(size=MODEL.size)


def slowly(data: ClientTensors, client: int, given: Floats) -> list[float]:
    """The contribution of a client, example by example, in plain Python."""
    assert isinstance(data.features, Tensor)
    matrix, bias = given[: FEATURES * CLASSES].reshape(CLASSES, FEATURES), given[FEATURES * CLASSES :]
    rows, found = data.examples(client), [0.0] * (2 + 2 * CLASSES)
    for row in rows:
        outputs = matrix.astype(np.float32) @ data.features[row].numpy() + bias.astype(np.float32)
        label, said = int(data.labels[row]), int(np.argmax(outputs))
        loss = float(np.log(np.exp(outputs.astype(float)).sum()) - outputs[label])
        found[0] += said == label
        found[1] += min(loss, 3.0) / 3.0
        found[2 + 2 * label + (said != label)] += 1
    shares = [each / len(rows) for each in found]
    return [shares[0] - 0.5, shares[1] - 0.5, *shares[2:]]


def test_a_contribution_is_what_a_slow_count_says() -> None:
    data = tensors()
    rows = scorer(data).rows(weights(), range(5))
    for client in range(5):
        assert rows[client] == pytest.approx(slowly(data, client, weights()), abs=1e-6)
    assert len({row.tobytes() for row in rows}) == 5


def test_a_contribution_is_a_function_of_its_clients_examples_and_the_weights_alone() -> None:
    data = tensors()
    rows = scorer(data).rows(weights(), range(5))
    for client in range(5):
        assert scorer(data).rows(weights(), [client])[0].tobytes() == rows[client].tobytes()
        mine = torch.from_numpy(np.asarray(data.examples(client)))
        assert isinstance(data.features, Tensor)
        others = torch.ones(len(data.labels), dtype=torch.bool)
        others[mine] = False
        moved = replace(
            data,
            features=torch.where(others[:, None], data.features + 9, data.features),
            labels=torch.where(others, (data.labels + 1) % CLASSES, data.labels),
        )
        assert scorer(moved).rows(weights(), range(5))[client].tobytes() == rows[client].tobytes()
    assert scorer(data).rows(weights(5), range(5)).tobytes() != rows.tobytes()


class Says(nn.Module):
    """Says what it is told to, whatever it is asked."""

    def __init__(self, what: list[float]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("what", torch.tensor(what))

    def forward(self, examples: Tensor) -> Tensor:
        found: Tensor = self.scale * self.get_buffer("what").expand(len(examples), -1)
        return found


NUMBERS = st.sampled_from([0.0, 1.0, -1.0, 1e38, -1e38, math.inf, -math.inf, math.nan, 1e-45])


@given(
    what=st.lists(NUMBERS, min_size=CLASSES, max_size=CLASSES),
    labels=st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=6),
    bound=st.sampled_from([1e-300, 0.1, 5.0, 1e300]),
    accuracy=st.booleans(),
    classes=st.sampled_from([None, 1, 2, CLASSES, 50]),
)
def test_no_contribution_is_longer_than_the_bound(
    what: list[float], labels: list[int], bound: float, accuracy: bool, classes: int | None
) -> None:
    scoring = Scoring(accuracy=accuracy, loss_bound=bound, classes=classes)
    data = ClientTensors(
        features=torch.zeros(len(labels), FEATURES),
        labels=torch.tensor(labels),
        offsets=np.array([0, len(labels)]),
        indices=np.arange(len(labels)),
    )
    model = Model(Says(what))
    row = scorer(data, scoring, model=model).rows(model.weights, [0])[0]
    assert np.isfinite(row).all()
    assert np.linalg.norm(row) < scoring.bound
    if accuracy and not np.isfinite(what).all():
        assert row[0] == -0.5  # what is not finite is wrong


def test_the_longest_contribution_is_as_long_as_the_bound_and_is_not_shortened() -> None:
    """Without this the noise would be larger than it has to be, or a perfect client would count for less."""
    sure = np.zeros((1, ALL.size))
    sure[0, [0, 1, 2]] = 0.5, -0.5, 1.0
    clip = FixedClip(clip_norm=ALL.bound)
    assert np.array_equal(clip.clip(sure), sure)
    assert np.linalg.norm(sure) > 0.999 * ALL.bound


class EachPlace(nn.Module):
    """Says class 1 at each place of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs = nn.Parameter(torch.tensor([0.0, 1.0]))

    def forward(self, examples: Tensor) -> Tensor:
        return self.outputs.expand(*examples.shape, 2)


LOSS = Scoring(accuracy=False, loss_bound=2.0)
LEFT_OUT = [[1, 1, 0, IGNORED], [IGNORED] * 4]
Counted = tuple[nn.Module, Loss, Scoring, Any, list[float]]
COUNTED: dict[str, Counted] = {
    "not finite: wrong, at the whole bound": (  # torch takes a NaN for the largest
        Says([math.nan, 0.0, 0.0, 0.0]), CROSS_ENTROPY, ALL, [0, 0], [-0.5, 0.5, 0.0, 1.0, *[0.0] * 6]
    ),
    "a loss that fails: the whole bound": (Says([7.0]), as_loss(nn.BCELoss()), LOSS, [1.0, 1.0], [0.5]),
    "half of the squared error, over 2": (Says([9.0]), SQUARED, LOSS, [10.0, 10.0], [0.25 - 0.5]),
    "several labels: the share that is right": (
        Says([3.0, -3.0, -3.0, 3.0]),
        LOGISTIC,
        Scoring(),
        [[1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]],
        [6 / 8 - 0.5],
    ),
    "a sequence: the places that count": (EachPlace(), CROSS_ENTROPY, Scoring(), LEFT_OUT, [(2 / 3 + 0) / 2 - 0.5]),
    "one output: yes above zero": (
        Says([0.5]), LOGISTIC, Scoring(classes=2), [1, 0, 1], [2 / 3 - 0.5, 0.0, 1 / 3, 2 / 3, 0.0]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTED)
def test_labels_and_outputs_of_all_kinds_are_counted(name: str) -> None:
    module, loss, scoring, labels, expected = COUNTED[name]
    data = ClientTensors(
        features=torch.zeros(len(labels), 4),
        labels=torch.tensor(labels),
        offsets=np.array([0, len(labels)]),
        indices=np.arange(len(labels)),
    )
    model = Model(module)
    row = scorer(data, scoring, model=model, loss=loss).rows(model.weights, [0])[0]
    assert row.tolist() == pytest.approx(expected)


def test_a_client_without_examples_contributes_nothing() -> None:
    data = tensors()
    empty = replace(data, offsets=np.where(data.offsets <= 7, data.offsets, 7))
    assert not scorer(empty).rows(weights(), [1]).any()


def test_the_sum_is_that_of_the_rows_in_whole_steps() -> None:
    cohort = scorer(tensors()).trainer(weights()).cohort([3, 0, 4], round=0)
    clip = FixedClip(clip_norm=0.7)
    summed = cohort.summed(bound=0.7, parts=None, factors=clip.factors)
    [chunk] = cohort.chunks()
    step = grid.coarse_step(0.7)
    slow = sum(np.trunc(clip.clip(row[None])[0] / step) for row in chunk.rows()) * step
    assert summed.total.tolist() == slow.tolist()
    assert summed.norms[:, 0] == pytest.approx(np.linalg.norm(chunk.rows(), axis=1))
    assert (summed.norms > 0.7).any()


class Remembers(nn.Module):
    """Counts the examples that it has seen: nobody else's may be among them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(FEATURES, CLASSES)
        self.seen = 0.0

    def forward(self, examples: Tensor) -> Tensor:
        self.seen += float(examples.sum())
        found: Tensor = self.inner(examples) * math.cos(self.seen)
        return found


def test_a_module_that_remembers_gets_a_copy_for_every_client() -> None:
    data, model = tensors(), Model(Remembers())
    together = scorer(data, model=model).rows(weights(), range(5))
    alone = [scorer(data, model=model).rows(weights(), [client])[0] for client in range(5)]
    assert together.tolist() == [row.tolist() for row in alone]


class Carries(Remembers):
    """Changes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, examples: Tensor) -> Tensor:
        self.get_buffer("count").add_(1)
        found: Tensor = self.inner(examples)
        return found


def test_a_module_that_changes_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="module = 'count'"):
        scorer(tensors(), model=Model(Carries())).rows(weights(), [0])


def test_what_cannot_be_compared_is_refused_on_made_up_examples() -> None:
    data = replace(tensors(), labels=torch.zeros(35, 6))
    with pytest.raises(ConfigError, match=r"cannot be compared with labels of the shape \(6,\)"):
        scorer(data, Scoring(), loss=Loss(name="own", value=lambda outputs, _: outputs.mean()))
    with pytest.raises(ConfigError, match=r"classes = 4: the labels are several, or numbers"):
        scorer(data)


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"accuracy": "yes"}, "accuracy"),
        ({"accuracy": False}, "accuracy = False"),
        ({"accuracy": True, "loss_bound": -1.0}, "loss_bound"),
        ({"accuracy": True, "loss_bound": math.inf}, "loss_bound"),
        ({"accuracy": True, "loss_bound": "1"}, "loss_bound"),
        ({"accuracy": True, "classes": 0}, "classes"),
        ({"accuracy": True, "classes": 2.5}, "classes"),
    ],
)
def test_a_form_that_says_something_else_is_refused(form: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Scoring.from_json(form)
    assert Scoring.from_json(ALL.to_json()) == ALL


def test_figures_are_read_off_the_released_mean() -> None:
    mean = np.array([0.25, -0.25, 0.3, 0.1, -0.01, 0.2, 0.4, 0.0, -0.1, -0.2])
    found = ALL.figures(mean, std=0.01)
    assert (found["accuracy"], found["accuracy_std"]) == (0.75, 0.01)
    assert (found["loss"], found["loss_std"], found["loss_bound"]) == (0.75, 0.03, 3.0)
    assert [row["recall"] for row in found["by_class"]] == pytest.approx([0.75, 0.0, 1.0, None])
    assert [row["share"] for row in found["by_class"]] == pytest.approx([0.4, 0.19, 0.4, -0.3])
    assert found["balanced_accuracy"] == pytest.approx((0.75 + 0.0 + 1.0) / 3)
    assert Scoring(classes=1).figures(np.array([0.0, -1.0, -1.0]), std=1.0)["balanced_accuracy"] is None


def test_a_form_has_the_figures_that_it_names() -> None:
    loss = Scoring(accuracy=False, loss_bound=2.0).figures(np.array([0.25]), std=0.1)
    assert loss == {"loss": 1.5, "loss_std": 0.2, "loss_bound": 2.0}
    assert Scoring().figures(np.array([0.25]), std=0.1) == {"accuracy": 0.75, "accuracy_std": 0.1}
