"""The centre of everyone's examples: what clients send for it, and how they learn around it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from incrowd import Local
from incrowd._random import Floats
from incrowd.data.inputs import single
from incrowd.errors import ConfigError
from incrowd.learning import ClientTensors, CohortEngine, Execution, Model, linear, mlp
from incrowd.learning.centre import shrunk
from incrowd.learning.losses import CROSS_ENTROPY
from incrowd.learning.opening import Opening
from incrowd.learning.total import Shortening
from incrowd.privacy.mechanism.clipping import FixedClip, NormalisedClip
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, SIZES, assert_close, clients, trained, twin

CONSTANT = 0.25
PLAIN = Local(learning_rate=0.3, batch_size=10, label_shares=0.1)
LOCAL = PLAIN.replaced(centre=0.1)
WHO = range(len(SIZES))
MODEL = linear(FEATURES + 1, CLASSES, bias=False)


def unit(data: ClientTensors) -> ClientTensors:
    """The clients' examples at length one, with a constant after them."""
    rows = single(data.features).double().numpy()
    rows = np.hstack([rows / np.linalg.norm(rows, axis=1, keepdims=True), np.full((len(rows), 1), CONSTANT)])
    return replace(data, features=torch.tensor(rows, dtype=torch.float32), scale=1.0, constant=CONSTANT)


@pytest.fixture(scope="module")
def data() -> ClientTensors:
    return unit(clients())


def rows_of(data: ClientTensors, client: int) -> Floats:
    return np.asarray(single(data.features)[torch.as_tensor(data.examples(client), dtype=torch.int64)].double())


def start(data: ClientTensors) -> torch.Tensor:
    """Weights, and a centre near the examples'."""
    centre = rows_of(data, 3)[:, :-1].mean(axis=0)
    return torch.cat([MODEL.initial(RANDOMNESS), torch.tensor(centre, dtype=torch.float32)])


def opening(data: ClientTensors, local: Local = LOCAL) -> Opening:
    found = Opening.of(MODEL, data, local, loss=CROSS_ENTROPY, outputs=(CLASSES,))
    assert found is not None
    return found


@pytest.mark.parametrize("clip", [NormalisedClip(clip_norm=0.5), FixedClip(clip_norm=3.0)])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_round_asks_for_the_mean_of_each_clients_examples(
    data: ClientTensors, clip: NormalisedClip | FixedClip, threads: int
) -> None:
    engine = CohortEngine(MODEL, data, LOCAL, Execution(threads=threads))
    found = trained(engine, start(data), WHO, round=0)
    for client, row in found.items():
        shortened = clip.clip(row[None].astype(np.float64))[0] / clip.clip_norm
        assert shortened[:FEATURES] == pytest.approx(rows_of(data, client)[:, :-1].mean(axis=0), abs=1e-6)
        assert np.linalg.norm(shortened) == pytest.approx(1, abs=1e-6)
        assert not shortened[FEATURES:-1].any()


def test_means_are_told_in_units_of_a_length_and_longer_ones_are_as_long_as_that(data: ClientTensors) -> None:
    means = {client: rows_of(data, client)[:, :-1].mean(axis=0) for client in WHO}
    length = float(np.median([np.linalg.norm(mean) for mean in means.values()]))
    found = trained(CohortEngine(MODEL, data, LOCAL.replaced(centre_length=length)), start(data), WHO, round=0)
    for client, row in found.items():
        told = NormalisedClip().clip(row[None].astype(np.float64))[0]
        expected = means[client] / max(length, float(np.linalg.norm(means[client])))
        assert told[:FEATURES] == pytest.approx(expected, abs=1e-6)
        assert np.linalg.norm(told) == pytest.approx(1, abs=1e-6)


def test_every_contribution_to_it_is_as_long_so_that_no_clip_prefers_any(data: ClientTensors) -> None:
    longer = replace(data, features=single(data.features) * 5)
    for one in (data, longer):
        found = trained(CohortEngine(MODEL, one, LOCAL), start(data), WHO, round=0)
        lengths = [np.linalg.norm(row) for row in found.values()]
        assert lengths == pytest.approx([2.0**20] * len(lengths), rel=1e-6)
    assert np.linalg.norm(rows_of(longer, 0)[:, :-1].mean(axis=0)) > 1


@pytest.mark.parametrize("odd", [np.nan, np.inf, 3e38])
def test_what_is_no_number_is_no_part_of_it(data: ClientTensors, odd: float) -> None:
    features = single(data.features).clone()
    features[torch.as_tensor(data.examples(2), dtype=torch.int64)[0]] = odd
    engine = CohortEngine(MODEL, replace(data, features=features), LOCAL)
    found = trained(engine, start(data), WHO, round=0)
    kept = trained(CohortEngine(MODEL, data, LOCAL), start(data), WHO, round=0)
    assert np.isfinite(found[2]).all() == np.isfinite(odd)
    assert all(np.array_equal(found[client], kept[client]) for client in WHO if client != 2)


@pytest.mark.parametrize("round", [0, 1, 7])
def test_nobody_else_changes_what_a_client_sends(data: ClientTensors, round: int) -> None:
    together = trained(CohortEngine(MODEL, data, LOCAL, Execution(chunk=3)), start(data), WHO, round=round)
    for client in WHO:
        alone = trained(CohortEngine(MODEL, data, LOCAL), start(data), [client], round=round)
        assert np.array_equal(alone[client], together[client])


@pytest.mark.parametrize("local", [LOCAL, LOCAL.replaced(epochs=3, batch_size=None, momentum=0.5)])
def test_later_rounds_learn_from_examples_less_the_centre(data: ClientTensors, local: Local) -> None:
    weights, centre = start(data)[:-FEATURES], start(data)[-FEATURES:]
    less = replace(data, features=single(data.features) - torch.cat([centre, torch.zeros(1)]))
    plain = CohortEngine(MODEL, less, local.replaced(centre=None))
    found = trained(CohortEngine(MODEL, data, local), start(data), WHO)
    assert_close(found, trained(plain, weights, WHO), tolerance=1e-6)
    without = trained(CohortEngine(MODEL, data, local.replaced(centre=None)), weights, WHO)
    assert max(float(np.abs(found[k] - without[k]).max()) for k in WHO) > 1e-3


def test_the_twin_says_the_same(data: ClientTensors) -> None:
    weights, centre = start(data)[:-FEATURES], start(data)[-FEATURES:]
    less = replace(data, features=single(data.features) - torch.cat([centre, torch.zeros(1)]))
    local = LOCAL.replaced(label_shares=None)
    found = trained(CohortEngine(MODEL, data, local), start(data), WHO)
    assert_close(found, twin(MODEL, less, local, weights, WHO))


def test_another_centre_is_another_start(data: ClientTensors) -> None:
    """An engine keeps what it made for a centre, and makes it anew for the next."""
    engine, moved = CohortEngine(MODEL, data, LOCAL), start(data)
    moved[-1] += 0.5
    first = trained(engine, start(data), WHO)
    other = trained(engine, moved, WHO)
    assert max(float(np.abs(first[k] - other[k]).max()) for k in WHO) > 1e-3
    again = trained(engine, start(data), WHO)
    assert all(np.array_equal(first[k], again[k]) for k in WHO)


def test_a_sum_is_that_of_the_contributions(data: ClientTensors) -> None:
    engine = CohortEngine(MODEL, data, LOCAL)
    how = Shortening(bound=1.0, parts=None, factors=NormalisedClip().factors)
    for number in (0, 1):
        rows = trained(engine, start(data), WHO, round=number).values()
        expected = sum(NormalisedClip().clip(row[None].astype(np.float64))[0] for row in rows)
        found = engine.train_and_sum(start(data), WHO, how, randomness=RANDOMNESS, round=number)
        assert found.total == pytest.approx(expected, abs=1e-4)


def test_the_published_model_takes_examples_as_they_are(data: ClientTensors) -> None:
    centre = opening(data)
    begun = start(data).double().numpy()
    weights, off = begun[:-FEATURES].reshape(CLASSES, -1), begun[-FEATURES:]
    for client in WHO:
        rows = rows_of(data, client)
        around = np.hstack([rows[:, :-1] - off, rows[:, -1:]]) @ weights.T
        published = centre.published(begun).reshape(CLASSES, -1)
        assert rows @ published.T == pytest.approx(around, abs=1e-6)
        assert rows @ weights.T != pytest.approx(around, abs=1e-2)


def test_it_starts_without_a_centre(data: ClientTensors) -> None:
    centre, weights = opening(data), MODEL.initial(RANDOMNESS).double().numpy()
    begun = centre.start(weights)
    assert begun.size == centre.size == CohortEngine(MODEL, data, LOCAL).start_size
    assert np.array_equal(centre.published(begun), weights)
    assert CohortEngine(MODEL, data, PLAIN).start_size == MODEL.size


def test_what_is_learnt_is_the_shrunk_mean_and_leaves_the_weights(data: ClientTensors) -> None:
    centre, begun = opening(data), start(data).double().numpy()
    released = np.random.default_rng(4).normal(size=MODEL.size)
    found = centre.learnt(begun, 0, released, 0.3)
    assert np.array_equal(found[:-FEATURES], begun[:-FEATURES])
    assert np.array_equal(found[-FEATURES:], shrunk(released[:FEATURES], 0.3))
    half = opening(data, LOCAL.replaced(centre_length=0.5)).learnt(begun, 0, released, 0.3)
    assert np.array_equal(half[-FEATURES:], found[-FEATURES:] / 2)


def test_bands_are_shrunk_by_what_is_noise_in_them() -> None:
    noised = np.array([3.0, 1.0, 0.1, 2.0, 2.0, 0.1, 0.1, 0.1, 5.0])
    left = {0: 1 - 1 / 9, 1: 0.0, 2: 1 - 2 / 4.01, 4: 1 - 4 / 4.03, 8: 1 - 1 / 25}
    expected = noised.copy()
    for begin, end in ((0, 1), (1, 2), (2, 4), (4, 8), (8, 9)):
        expected[begin:end] *= left[begin]
    assert shrunk(noised, 1.0) == pytest.approx(expected)
    assert np.array_equal(shrunk(noised, 0.0), noised)
    assert not shrunk(np.zeros(5), 0.0).any()
    assert not shrunk(np.full(5, 0.01), 1.0).any()


def test_shrunk_is_nearer_than_noised() -> None:
    source = np.random.default_rng(6)
    truth = 1 / np.arange(1, 513) ** 0.7
    errors = {"noised": 0.0, "shrunk": 0.0, "wrongly": 0.0}
    for _ in range(20):
        noised = truth + 0.1 * source.normal(size=512)
        errors["noised"] += float(((noised - truth) ** 2).sum())
        errors["shrunk"] += float(((shrunk(noised, 0.1) - truth) ** 2).sum())
        errors["wrongly"] += float(((shrunk(noised, 0.4) - truth) ** 2).sum())
    assert errors["shrunk"] < 0.5 * errors["noised"]
    assert errors["wrongly"] > errors["shrunk"]


MODELS: dict[str, Model] = {
    "a bias": linear(FEATURES + 1, CLASSES),
    "hidden layers": mlp((FEATURES + 1, 8, CLASSES), bias=False),
    "another module": Model(nn.Sequential(nn.Linear(FEATURES + 1, CLASSES, bias=False), nn.Tanh())),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_for_linear_models_of_a_constant(data: ClientTensors, name: str) -> None:
    with pytest.raises(ConfigError, match=r"local\.centre = .*without a bias of its own"):
        CohortEngine(MODELS[name], data, LOCAL)
    CohortEngine(MODELS[name], data, PLAIN)


def test_one_number_is_no_example_with_a_constant(data: ClientTensors) -> None:
    alone = replace(data, features=single(data.features)[:, -1:].contiguous())
    with pytest.raises(ConfigError, match=r"local\.centre"):
        CohortEngine(linear(1, CLASSES, bias=False), alone, LOCAL)


def test_a_start_without_a_centre_is_refused(data: ClientTensors) -> None:
    with pytest.raises(ConfigError, match="weights and what was found before"):
        trained(CohortEngine(MODEL, data, LOCAL), MODEL.initial(RANDOMNESS), WHO)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_is_between_none_and_all(share: float) -> None:
    with pytest.raises(ConfigError, match=r"local\.centre"):
        Local(centre=share)


def test_a_rehearsal_goes_through_both_kinds_of_rounds_and_reads_nobody(data: ClientTensors) -> None:
    nothing = replace(data, features=torch.full_like(single(data.features), torch.nan))
    engine = CohortEngine(MODEL, nothing, LOCAL)
    engine.rehearse(start(data))
    with pytest.raises(ConfigError, match="weights and what was found before"):
        engine.rehearse(MODEL.initial(RANDOMNESS))
