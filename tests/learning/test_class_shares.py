"""How frequent classes are: what clients say of their own labels, and what they learn from then."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from incrowd import Local
from incrowd._random import Floats
from incrowd.data.examples import IGNORED
from incrowd.errors import ConfigError
from incrowd.learning import CROSS_ENTROPY, LOGISTIC, ClientTensors, CohortEngine, Execution, Loss, Model, linear, mlp
from incrowd.learning.class_shares import ClassShares
from incrowd.learning.label_shares import logit_offset
from incrowd.privacy.mechanism.clipping import FixedClip, NormalisedClip
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, SIZES, clients, trained, with_labels

PLAIN = Local(learning_rate=0.3, batch_size=10, label_shares=0.1)
LOCAL = PLAIN.replaced(class_shares=0.1)
MODEL = linear(FEATURES, CLASSES)
WHO = range(len(SIZES))
ASKED = ClassShares(weights=MODEL.size, classes=CLASSES, several=False)


def uneven(seed: int = 3) -> ClientTensors:
    """Clients most of whose labels are 0, each in its own measure."""
    data, generator = clients(), np.random.default_rng(seed)
    rare = generator.random(len(data.labels)) < np.repeat(generator.random(len(SIZES)), SIZES)
    order = np.concatenate([data.examples(k) for k in WHO])
    labels = data.labels.clone()
    labels[torch.as_tensor(order[~rare], dtype=torch.int64)] = 0
    return with_labels(data, labels)


@pytest.fixture(scope="module")
def data() -> ClientTensors:
    return uneven()


def labels_of(data: ClientTensors, client: int) -> torch.Tensor:
    return data.labels[torch.as_tensor(data.examples(client), dtype=torch.int64)]


def said(
    data: ClientTensors, model: Model = MODEL, *, loss: Loss = CROSS_ENTROPY, threads: int = 1
) -> dict[int, Floats]:
    """What each client sends in the round that asks, by a bound of one."""
    engine = CohortEngine(model, data, LOCAL, Execution(threads=threads), loss=loss)
    start = torch.zeros(engine.start_size)
    return {k: row / np.linalg.norm(row) for k, row in trained(engine, start, range(data.clients), round=0).items()}


@pytest.mark.parametrize("threads", [1, 2])
def test_each_client_says_by_how_much_its_shares_are_above_equal_ones(data: ClientTensors, threads: int) -> None:
    for client, row in said(data, threads=threads).items():
        labels = labels_of(data, client).numpy()
        shares = np.array([np.mean(labels == kind) for kind in range(CLASSES)])
        assert row[:CLASSES] * np.sqrt(1 - 1 / CLASSES) == pytest.approx(shares - 1 / CLASSES, abs=1e-6)
        assert not row[CLASSES:-1].any()


def test_who_has_one_class_alone_says_as_much_as_can_be_said(data: ClientTensors) -> None:
    alone = with_labels(data, torch.full_like(data.labels, 2))
    for row in said(alone).values():
        assert np.linalg.norm(row[:CLASSES]) == pytest.approx(1, abs=1e-6)
        assert row[-1] == pytest.approx(0, abs=1e-3)


def test_of_labels_of_yes_and_no_each_says_its_shares_of_yes() -> None:
    several = torch.from_numpy(np.random.default_rng(1).integers(0, 2, (sum(SIZES), 3))).float()
    data = with_labels(clients(), several)
    for client, row in said(data, linear(FEATURES, 3), loss=LOGISTIC).items():
        yes = labels_of(data, client).mean(0).numpy()
        assert row[:3] * np.sqrt(3) / 2 == pytest.approx(yes - 0.5, abs=1e-6)
    one = with_labels(clients(), several[:, 0])
    for client, row in said(one, linear(FEATURES, 1), loss=LOGISTIC).items():
        assert row[0] / 2 == pytest.approx(float(labels_of(one, client).mean()) - 0.5, abs=1e-6)


class PerPlace(nn.Module):
    """A class for each place of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES // 4, 3)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.layer(features.view(len(features), 4, -1))
        return outputs


def test_of_sequences_places_that_do_not_count_are_left_out() -> None:
    labels = torch.from_numpy(np.random.default_rng(2).integers(0, 3, (sum(SIZES), 4)))
    labels[:, 2] = IGNORED
    data = with_labels(clients(), labels)
    nobody = torch.as_tensor(data.examples(1), dtype=torch.int64)
    labels[nobody] = IGNORED
    found = said(data, Model(PerPlace()))
    counted = labels_of(data, 0)[:, [0, 1, 3]].numpy()
    shares = np.array([np.mean(counted == kind) for kind in range(3)])
    assert found[0][:3] * np.sqrt(2 / 3) == pytest.approx(shares - 1 / 3, abs=1e-6)
    assert not found[1][:-1].any()  # who has none says that they are equal


@pytest.mark.parametrize("clip", [NormalisedClip(clip_norm=0.5), FixedClip(clip_norm=3.0)])
def test_what_is_said_is_as_long_for_everyone(data: ClientTensors, clip: NormalisedClip | FixedClip) -> None:
    engine = CohortEngine(MODEL, data, LOCAL)
    for row in trained(engine, torch.zeros(engine.start_size), WHO, round=0).values():
        shortened = clip.clip(row[None].astype(np.float64))[0] / clip.clip_norm
        assert np.linalg.norm(shortened) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("asked", [ASKED, replace(ASKED, several=True)], ids=["classes", "several"])
def test_noise_alone_is_seldom_taken_for_unequal_shares(asked: ClassShares) -> None:
    noise, trials = np.random.default_rng(5), 2000
    found = [asked.found(noise.normal(0, 0.05, 40), 0.05) for _ in range(trials)]
    assert np.mean([one.any() for one in found]) < 0.06  # two standard deviations of a sum of few squares
    clear = np.zeros(40)
    clear[:CLASSES] = [0.6, -0.15, -0.15, -0.15, -0.15]
    assert all(asked.found(clear + noise.normal(0, 0.05, 40), 0.05).any() for _ in range(trials))  # the control


def test_what_is_found_are_shares_and_nearly_right() -> None:
    noise = np.random.default_rng(6)
    truth = np.array([0.7, 0.1, 0.1, 0.07, 0.03])
    mean = np.concatenate([(truth - 0.2) / ASKED.longest, np.zeros(9)])
    found = np.array([ASKED.found(mean + noise.normal(0, 0.05, 14), 0.05) for _ in range(500)]) + 0.2
    assert found.min() >= 0
    assert found.sum(1) == pytest.approx(np.ones(500))
    assert np.sqrt(np.square(found - truth).sum(1)).mean() < 0.12
    assert found.mean(0) == pytest.approx(truth, abs=0.02)
    exact = ASKED.found(mean, 1e-9)
    assert exact == pytest.approx(truth - 0.2, abs=1e-6)


@pytest.mark.parametrize(("loss", "outputs"), [(CROSS_ENTROPY, (CLASSES,)), (LOGISTIC, (2,))])
def test_whose_labels_are_as_everyones_adds_nothing(loss: Loss, outputs: tuple[int, ...]) -> None:
    labels = torch.tensor([0, 0, 0, 1, 2, 4]) if loss is CROSS_ENTROPY else torch.tensor([[1.0, 0], [1, 1], [1, 0]])
    kinds, equal = outputs[-1], 0.5 if loss is LOGISTIC else 1 / outputs[-1]
    own = labels.mean(0) if loss is LOGISTIC else torch.bincount(labels, minlength=kinds) / len(labels)
    found = logit_offset(labels, 0.1, loss=loss, outputs=outputs, above_equal=own - equal)
    assert (found - found.mean()).abs().max() < 1e-6  # the same for all classes is nothing
    assert loss is CROSS_ENTROPY or found.abs().max() < 1e-6
    plain = logit_offset(labels, 0.1, loss=loss, outputs=outputs)
    assert (plain - plain.mean()).abs().max() > 0.5  # the control
    assert torch.equal(plain, logit_offset(labels, 0.1, loss=loss, outputs=outputs, above_equal=torch.zeros(kinds)))


MODELS: dict[str, Callable[[], Model]] = {
    "linear": lambda: MODEL,
    "perceptron": lambda: mlp((FEATURES, 30, CLASSES)),
    "any": lambda: Model(nn.Sequential(nn.Linear(FEATURES, 9), nn.Softplus(), nn.Linear(9, CLASSES)), fresh=True),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_from_then_on_every_path_learns_against_everyones(data: ClientTensors, make: Callable[[], Model]) -> None:
    model, above = make(), torch.tensor([0.5, -0.2, -0.1, -0.1, -0.1])
    weights = model.initial(RANDOMNESS)
    engine = CohortEngine(model, data, LOCAL)
    found = trained(engine, torch.cat([weights, above]), WHO, round=1)
    everyones = (0.2 + above + 0.1).log()

    def by_hand(client: int) -> Loss:
        shares = torch.bincount(labels_of(data, client), minlength=CLASSES) / len(labels_of(data, client))
        offset = (shares + 0.1).log() - everyones
        return Loss(name="by hand", value=lambda outputs, labels: nn.functional.cross_entropy(outputs + offset, labels))

    for client in WHO:
        slow = CohortEngine(model, data, Local(learning_rate=0.3, batch_size=10), loss=by_hand(client))
        expected = trained(slow, weights, [client], round=1)[client]
        assert found[client] == pytest.approx(expected, abs=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("round", [0, 1, 6])
def test_nobody_else_changes_what_a_client_sends(data: ClientTensors, round: int) -> None:
    engine = CohortEngine(MODEL, data, LOCAL, Execution(chunk=3))
    begun = torch.cat([MODEL.initial(RANDOMNESS), torch.tensor([0.3, 0.1, -0.2, -0.1, -0.1])])
    together = trained(engine, begun, WHO, round=round)
    for client in WHO:
        assert np.array_equal(trained(engine, begun, [client], round=round)[client], together[client])


def test_a_rehearsal_asks_and_reads_nobody(data: ClientTensors) -> None:
    hidden = replace(data, features=torch.full_like(data.features.float(), torch.nan), scale=1.0)
    engine = CohortEngine(MODEL, hidden, LOCAL)
    engine.rehearse(torch.zeros(engine.start_size))


def test_what_it_does_not_fit_is_refused(data: ClientTensors) -> None:
    with pytest.raises(
        ConfigError, match=r"local\.class_shares = 0\.1: it is what local\.label_shares are seen against"
    ):
        CohortEngine(MODEL, data, Local(learning_rate=1.0, class_shares=0.1))
    with pytest.raises(ConfigError, match=r"local\.class_shares = 1: it is for several classes"):
        CohortEngine(linear(FEATURES, 1), with_labels(data, data.labels * 0), LOCAL)
    one = clients((4,))
    one = replace(one, features=torch.ones(4, 1), labels=one.labels % 2)
    with pytest.raises(ConfigError, match=r"local\.class_shares = 2: .* models of more weights"):
        CohortEngine(linear(1, 2, bias=False), one, LOCAL)


def test_a_vector_of_another_length_and_an_unknown_device_are_refused() -> None:
    whole = torch.zeros(ASKED.size)
    assert [len(part) for part in ASKED.divided(whole)] == [MODEL.size, CLASSES]
    with pytest.raises(ConfigError, match="give one vector of"):
        ASKED.divided(whole[1:])
    with pytest.raises(ConfigError, match="give one that torch finds here"):
        Execution(device="nowhere")
