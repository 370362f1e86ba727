"""How strongly a model speaks: what clients say of it, and what becomes of that."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from incrowd import Local
from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.learning import CROSS_ENTROPY, LOGISTIC, ClientTensors, CohortEngine, Execution, Loss, Model, linear, mlp
from incrowd.learning.calibration import STRENGTHS, Strength
from incrowd.learning.label_shares import everyones_offset
from incrowd.learning.opening import Opening
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, SIZES, clients, trained, with_labels
from tests.learning.test_centre import CONSTANT, MODEL, rows_of, unit
from tests.learning.test_class_shares import labels_of

PLAIN = Local(learning_rate=0.3, batch_size=10, label_shares=0.1, class_shares=0.1)
LOCAL = PLAIN.replaced(calibration=0.1)
WHO = range(len(SIZES))
ABOVE = np.array([0.4, -0.1, 0.05, -0.15, -0.2])  # of each class, how much more frequent than equally frequent ones


@pytest.fixture(scope="module")
def data() -> ClientTensors:
    return unit(clients())


def opening(data: ClientTensors, model: Model = MODEL, *, loss: Loss = CROSS_ENTROPY, local: Local = LOCAL) -> Opening:
    found = Opening.of(model, data, local, loss=loss, outputs=model.module(torch.zeros(1, *data.shape)).shape[1:])
    assert found is not None
    return found


def asked(data: ClientTensors, model: Model = MODEL, *, loss: Loss = CROSS_ENTROPY) -> Floats:
    """What the round that closes starts with: weights that are far from none, and how frequent classes are."""
    weights = 20 * model.initial(RANDOMNESS).double().numpy()
    known = opening(data, model, loss=loss)
    assert known.calibration is not None
    start = known.start(weights)
    start[model.size : -1] = ABOVE[: len(start) - model.size - 1]
    return known.calibration.asking(start)


def heard(data: ClientTensors, *, now: bool) -> ClientTensors:
    return Strength(inputs=FEATURES + 1, constant=CONSTANT).heard(data, now=now)


def votes(
    data: ClientTensors, model: Model = MODEL, *, loss: Loss = CROSS_ENTROPY, threads: int = 1
) -> dict[int, Floats]:
    engine = CohortEngine(model, data, LOCAL, Execution(threads=threads), loss=loss)
    found = trained(engine, torch.from_numpy(asked(data, model, loss=loss)), WHO, round=9)
    return {client: row / np.linalg.norm(row) for client, row in found.items()}


def slow_votes(data: ClientTensors, client: int, model: Model, loss: Loss) -> Floats:
    """Which of two strengths is likelier, one after the other, of the model that would be published with it."""
    known, data = opening(data, model, loss=loss), heard(data, now=True)
    labels = labels_of(data, client)
    start = asked(data, model, loss=loss).astype(np.float32).astype(np.float64)
    losses = []
    for strength in STRENGTHS:
        matrix = known.published(np.append(start[:-1], strength)).reshape(-1, FEATURES + 1)
        losses.append(float(loss.value(torch.from_numpy(rows_of(data, client) @ matrix.T), labels)))
    return np.array([1.0 if after < before else -1.0 for before, after in pairwise(losses)])


@pytest.mark.parametrize("threads", [1, 2])
def test_each_client_says_which_of_two_strengths_its_examples_agree_with(data: ClientTensors, threads: int) -> None:
    found = votes(data, threads=threads)
    for client, row in found.items():
        expected = slow_votes(data, client, MODEL, CROSS_ENTROPY)
        assert row[: len(expected)] * np.sqrt(len(expected)) == pytest.approx(expected, abs=1e-6)
        assert not row[len(expected) : -1].any()
        assert row[-1] == pytest.approx(0, abs=1e-3)  # all say as much
    assert len({tuple(row > 0) for row in found.values()}) > 1


def test_so_it_is_of_labels_of_yes_and_no() -> None:
    labels = torch.from_numpy(np.random.default_rng(1).integers(0, 2, (sum(SIZES), 3))).float()
    data = replace(unit(clients()), labels=labels)
    model = linear(FEATURES + 1, 3, bias=False)
    for client, row in votes(data, model, loss=LOGISTIC).items():
        expected = slow_votes(data, client, model, LOGISTIC)
        assert row[: len(expected)] * np.sqrt(len(expected)) == pytest.approx(expected, abs=1e-6)


def test_of_many_examples_as_of_few(data: ClientTensors, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = votes(data)
    monkeypatch.setattr("incrowd.learning.calibration._ROWS", 4)
    parts = votes(data)
    assert all(np.array_equal(whole[client], parts[client]) for client in WHO)


def test_of_likelihoods_that_are_no_numbers_nothing_is_said(data: ClientTensors) -> None:
    start = asked(data)
    start[3] = np.nan
    found = trained(CohortEngine(MODEL, data, LOCAL), torch.from_numpy(start), WHO, round=9)
    assert not any(row[:-1].any() for row in found.values())
    assert [row[-1] for row in found.values()] == [2.0**20] * len(SIZES)


@pytest.mark.parametrize("round", [0, 1, 9])
def test_nobody_else_changes_what_a_client_says(data: ClientTensors, round: int) -> None:
    start = torch.from_numpy(asked(data))
    together = trained(CohortEngine(MODEL, data, LOCAL, Execution(chunk=3)), start, WHO, round=round)
    for client in WHO:
        alone = trained(CohortEngine(MODEL, data, LOCAL), start, [client], round=round)
        assert np.array_equal(alone[client], together[client])


def sized(*sizes: int) -> ClientTensors:
    """Clients of so many examples each, which lie one after the other."""
    count = sum(sizes)
    data = unit(clients())
    return replace(
        data,
        features=torch.arange(count, dtype=torch.float32)[:, None],
        labels=torch.zeros(count, dtype=torch.int64),
        offsets=np.cumsum([0, *sizes]),
        indices=np.arange(count),
    )


@pytest.mark.parametrize(("size", "apart"), [(4, 1), (6, 1), (7, 2), (30, 9), (107, 32), (600, 32)])
def test_a_client_judges_by_examples_that_it_does_not_learn_from(size: int, apart: int) -> None:
    judged, learnt = (set(heard(sized(3, size, 7), now=now).examples(1)) for now in (True, False))
    assert len(judged) == apart
    assert not judged & learnt
    assert judged | learnt == set(range(3, 3 + size))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_who_has_few_examples_judges_by_what_it_learns_from(size: int) -> None:
    for now in (True, False):
        assert list(heard(sized(9, size), now=now).examples(1)) == list(range(9, 9 + size))


def test_which_examples_are_kept_apart_follows_from_how_many_a_client_has() -> None:
    judged = heard(sized(40, 8, 40), now=True)
    assert list(judged.examples(2)) == [48 + place for place in judged.examples(0)]
    assert sorted(judged.examples(0)) != list(range(12))  # they may be in order of their labels
    assert judged.offsets.tolist() == [0, 12, 14, 26]


def test_a_model_that_knows_examples_by_heart_is_judged_by_others() -> None:
    """Labels say nothing, and everything that was learnt is right; the control judges by what was learnt."""
    people, each, numbers = 40, 10, 400
    generator = np.random.default_rng(4)
    rows = np.hstack([generator.normal(size=(people * each, numbers)) / 20, np.full((people * each, 1), CONSTANT)])
    data = ClientTensors(
        features=torch.from_numpy(rows.astype(np.float32)),
        labels=torch.from_numpy(generator.integers(0, CLASSES, people * each)),
        offsets=np.arange(people + 1) * each,
        indices=np.arange(people * each),
        constant=CONSTANT,
    )
    model, learnt = linear(numbers + 1, CLASSES, bias=False), heard(data, now=False)
    examples = torch.from_numpy(learnt.indices)
    wanted = 8 * torch.nn.functional.one_hot(data.labels[examples], CLASSES).double()
    weights = torch.linalg.lstsq(data.rows()[examples].double(), wanted).solution.T

    def stronger(judged: ClientTensors) -> float:
        shares = torch.tensor([0.001, -0.001, 0.0, 0.0, 0.0, -1.0])
        start = torch.cat([weights.ravel(), shares]).float()
        found = trained(CohortEngine(model, judged, LOCAL), start, range(people), round=9)
        return float(np.mean([row[len(STRENGTHS) - 2] / np.linalg.norm(row) for row in found.values()]))

    assert stronger(data) < -0.2
    assert stronger(learnt) == pytest.approx(0.5)


def said(*votes: float) -> Floats:
    """What a release of these means of votes is, one between each strength and the next."""
    return np.concatenate([np.array(votes) / np.sqrt(len(votes)), np.full(5, 9.0)])


def test_the_strength_is_that_for_which_most_is_said() -> None:
    calibration = Strength(inputs=FEATURES + 1, constant=CONSTANT)
    assert STRENGTHS == (0.0625, 0.125, 0.25, 0.5, 1.0)
    for place, strength in enumerate(STRENGTHS):
        votes = np.where(np.arange(4) < place, 0.3, -0.3)
        assert calibration.learnt(said(*votes), 0.0) == strength
    assert calibration.learnt(np.zeros(20), 0.0) == 1.0
    assert calibration.learnt(said(0.5, 0, 0, 0), 0.0) == 1.0  # anything from an eighth on is as good
    assert calibration.learnt(said(0.5, 0.5, 0.5, -0.5), 0.0) == 0.5
    assert calibration.learnt(said(-1, 0.5, -1, -1), 0.0) == 0.0625  # one is alone in what it says


def test_what_is_not_clearly_said_leaves_the_model_as_it_is() -> None:
    calibration = Strength(inputs=FEATURES + 1, constant=CONSTANT)
    for lead, found in ((0.09, 1.0), (0.11, 0.25)):  # at each step, of all clients
        assert calibration.learnt(said(0.5, 0.5, -lead, -lead), 0.0) == found
    deviation = 0.1 * np.sqrt(4 * 2)  # of a sum of two votes
    for times, found in ((1.49, 1.0), (1.51, 0.25)):
        assert calibration.learnt(said(0.5, 0.5, *[-times * deviation / 2] * 2), 0.1) == found


def test_noise_alone_seldom_finds_another_strength() -> None:
    noise, calibration = np.random.default_rng(5), Strength(inputs=FEATURES + 1, constant=CONSTANT)
    for deviation in (0.01, 0.1, 1.0):
        found = [calibration.learnt(noise.normal(0, deviation, 4), deviation) for _ in range(1000)]
        assert np.mean([one == 1.0 for one in found]) > 0.8
        credulous = [calibration.learnt(noise.normal(0, max(deviation, 0.2), 4), 0.0) for _ in range(1000)]
        assert np.mean([one == 1.0 for one in credulous]) < 0.5  # the control


def test_noise_seldom_moves_a_clear_answer_by_more_than_a_step() -> None:
    noise, calibration = np.random.default_rng(5), Strength(inputs=FEATURES + 1, constant=CONSTANT)
    votes = np.where(np.arange(4) < 2, 1.0, -1.0) / np.sqrt(4)
    found = [calibration.learnt(votes + noise.normal(0, 0.1, 4), 0.1) for _ in range(500)]
    assert np.mean([0.125 <= one <= 0.5 for one in found]) > 0.99
    lost = [calibration.learnt(votes + noise.normal(0, 2.0, 4), 2.0) for _ in range(500)]  # the control
    assert np.mean([0.125 <= one <= 0.5 for one in lost]) < 0.8


@pytest.mark.parametrize(("weights", "strengths"), [(2, 2), (3, 3), (4, 4), (5, 5), (9, 5), (40, 5)])
def test_small_models_speak_in_fewer_strengths(weights: int, strengths: int) -> None:
    labels = torch.zeros(sum(SIZES))
    data = replace(unit(clients()), features=torch.ones(sum(SIZES), weights), labels=labels)
    model = linear(weights, 1, bias=False)
    found = Strength.of(model, data).strengths
    assert len(found) == strengths
    assert found[-1] == 1.0
    engine = CohortEngine(model, data, LOCAL, loss=LOGISTIC)
    start = Strength.of(model, data).asking(np.ones(engine.start_size))
    for row in trained(engine, torch.from_numpy(start), WHO, round=9).values():
        assert np.linalg.norm(row) == pytest.approx(2.0**20)


@pytest.mark.parametrize("strength", [0.0, 0.25, 4.0])
@pytest.mark.parametrize("several", [False, True])
def test_what_is_known_of_classes_is_said_as_loudly_at_any_strength(several: bool, strength: float) -> None:
    labels = torch.zeros(sum(SIZES), CLASSES) if several else torch.zeros(sum(SIZES), dtype=torch.int64)
    loss = LOGISTIC if several else CROSS_ENTROPY
    data = replace(unit(clients()), labels=labels)
    known = opening(data, loss=loss)
    above, weights = ABOVE, MODEL.initial(RANDOMNESS).double().numpy()
    published = known.published(np.concatenate([weights, above, [strength]]))
    rows = rows_of(data, 2)
    outputs = rows @ published.reshape(CLASSES, -1).T
    prior = everyones_offset(torch.from_numpy(above), 0.1, several=several).numpy()
    matrix = weights.reshape(CLASSES, -1)
    expected = (strength or 1.0) * rows[:, :-1] @ matrix[:, :-1].T + rows[:, -1:] @ matrix[:, -1:].T + prior
    assert outputs == pytest.approx(expected, abs=1e-9)


def test_apart_or_not_a_client_learns_the_same_at_the_same_model(data: ClientTensors) -> None:
    """What the published model says of classes, it says in the other way by its own weights."""
    above, weights = ABOVE, MODEL.initial(RANDOMNESS).double().numpy()
    apart = np.concatenate([weights, above, [0.0]])
    matrix = weights.reshape(CLASSES, -1).copy()
    matrix[:, -1] += everyones_offset(torch.from_numpy(above), 0.1, several=False).numpy() / CONSTANT
    together = np.concatenate([matrix.ravel(), above])
    found = trained(CohortEngine(MODEL, data, LOCAL), torch.from_numpy(apart), WHO, round=1)
    learnt_from = heard(data, now=False)
    usual = trained(CohortEngine(MODEL, learnt_from, PLAIN), torch.from_numpy(together), WHO, round=1)
    without = trained(CohortEngine(MODEL, learnt_from, PLAIN), torch.from_numpy(apart[:-1]), WHO, round=1)
    for client in WHO:
        assert found[client] == pytest.approx(usual[client], abs=2e-5)
        assert np.abs(found[client] - without[client]).max() > 1e-3  # the control


@pytest.mark.parametrize("uneven", [True, False])
def test_where_classes_are_equally_frequent_clients_learn_from_all_examples(data: ClientTensors, uneven: bool) -> None:
    above = ABOVE * uneven
    start = torch.from_numpy(np.concatenate([MODEL.initial(RANDOMNESS).double().numpy(), above, [0.0]]))
    usual = PLAIN.replaced(class_shares=None)
    found = trained(CohortEngine(MODEL, data, LOCAL), start, WHO, round=1)
    whole = trained(CohortEngine(MODEL, data, usual), start[: MODEL.size], WHO, round=1)
    assert all(np.array_equal(found[client], whole[client]) for client in WHO) == (not uneven)


def test_it_is_for_linear_models_of_examples_with_a_constant(data: ClientTensors) -> None:
    for model in (mlp((FEATURES + 1, 4, CLASSES)), linear(FEATURES + 1, CLASSES)):
        with pytest.raises(ConfigError, match=r"local\.calibration = .*: it is for a linear model without a bias"):
            opening(data, model)


def test_it_goes_with_class_shares() -> None:
    with pytest.raises(ConfigError, match=r"local\.calibration = 0\.1: .* beside local\.class_shares"):
        Local(label_shares=0.1, calibration=0.1)
    with pytest.raises(ConfigError, match=r"local\.class_shares = 0\.5: with local\.calibration nothing is left"):
        Local(label_shares=0.1, class_shares=0.5, calibration=0.5)


def test_nothing_is_made_of_examples_that_are_not_there() -> None:
    made_up = with_labels(clients(), torch.zeros(sum(SIZES), dtype=torch.int64))
    engine = CohortEngine(MODEL, unit(made_up), LOCAL)
    engine.rehearse(torch.zeros(engine.start_size))
