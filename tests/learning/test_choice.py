"""The choice between what is known of pictures and their pixels: how clients vote, and what they learn from then."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from incrowd import Local
from incrowd._random import Floats
from incrowd.data.inputs import single
from incrowd.errors import ConfigError
from incrowd.learning import ClientTensors, CohortEngine, Execution, Model, linear, mlp
from incrowd.learning.choice import CLEARLY, LEAST_LEAD, LEAST_OF_PICTURES, KindChoice, Votes, _told_apart
from incrowd.learning.losses import CROSS_ENTROPY, LOGISTIC, SQUARED, Loss
from incrowd.learning.opening import Opening
from incrowd.learning.paths.path import TrainingTask
from incrowd.learning.store import Kinds
from incrowd.privacy.mechanism.clipping import FixedClip, NormalisedClip
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, SIZES, assert_close, clients, trained
from tests.learning.test_centre import MODEL, PLAIN, WHO, rows_of, unit

KINDS = Kinds(known=10)
PARTS = slice(0, KINDS.known), slice(KINDS.known, -1)
LOCAL = PLAIN.replaced(choice=0.1)
BOTH = LOCAL.replaced(centre=0.2)


def of_kinds(data: ClientTensors) -> ClientTensors:
    """The clients' examples, of two kinds."""
    rows = single(unit(data).features).double().numpy().copy()
    for part, length in ((slice(0, KINDS.known), 1.0), (slice(KINDS.known, -1), 1.0)):
        rows[:, part] *= length / np.maximum(np.linalg.norm(rows[:, part], axis=1, keepdims=True), 1e-9)
    return replace(unit(data), features=torch.tensor(rows, dtype=torch.float32), kinds=KINDS)


def told_by(data: ClientTensors, *, pixels: bool, noise: float = 0.3) -> ClientTensors:
    """The same, whose classes one kind tells apart and the other does not."""
    generator = np.random.default_rng(7)
    classes = generator.normal(size=(CLASSES, FEATURES))
    rows = generator.normal(size=(len(data.labels), FEATURES))
    part = slice(KINDS.known, None) if pixels else slice(0, KINDS.known)
    rows[:, part] = classes[data.labels.numpy()][:, part] + noise * rows[:, part]
    features = torch.tensor(np.hstack([rows, np.zeros((len(rows), 1))])[:, :FEATURES], dtype=torch.float32)
    return of_kinds(replace(data, features=features, scale=1.0))


@pytest.fixture(scope="module")
def data() -> ClientTensors:
    return of_kinds(clients())


def opening(data: ClientTensors, local: Local = LOCAL) -> Opening:
    found = Opening.of(MODEL, data, local, loss=CROSS_ENTROPY, outputs=(CLASSES,))
    assert found is not None
    return found


def start(*beside: float, features: int = 0) -> torch.Tensor:
    return torch.cat([MODEL.initial(RANDOMNESS), torch.tensor(beside), torch.zeros(features)])


def slowly(rows: Floats, labels: NDArray[np.int64]) -> int:
    """How many pairs of rows of two classes are in order by fits to others: of each class five folds, one after the
    other, are dealt its rows in their order.
    """
    classes, places = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        return 0
    counts = np.bincount(places)
    fold = np.array([(places[:row] == place).sum() * 5 // counts[place] for row, place in enumerate(places)])
    said = np.zeros((len(rows), len(classes)))
    for row in range(len(rows)):
        kept = fold != fold[row]
        x, y = rows[kept], places[kept]
        weights = 1 / (len(classes) * np.bincount(y)[y])
        mean = weights @ x
        x = x - mean
        spread = weights @ np.square(x).sum(axis=1)
        wanted = np.eye(len(classes))[y] - 1 / len(classes)
        given = x.T @ (len(y) * weights[:, None] * x) + 0.3 * spread * np.eye(x.shape[1])
        said[row] = (rows[row] - mean) @ np.linalg.solve(given, x.T @ (len(y) * weights[:, None] * wanted))
    found = 0
    for one, of in enumerate(places):
        for other, to in enumerate(places):
            found += int(of != to and said[one, of] - said[one, to] > said[other, of] - said[other, to])
    return found


def votes(data: ClientTensors, local: Local = LOCAL, *, threads: int = 1) -> dict[int, float]:
    engine = CohortEngine(MODEL, data, local, Execution(threads=threads))
    found = trained(engine, start(*[0.0] * opening(data, local).beside), range(data.clients), round=0)
    return {client: row[0] / 2.0**20 for client, row in found.items()}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_client_votes_for_what_tells_its_own_examples_apart(data: ClientTensors, threads: int) -> None:
    mixed = told_by(clients(), pixels=True, noise=2.0)
    by_pixels, by_known = (told_by(clients(), pixels=pixels, noise=0.1) for pixels in (True, False))
    both = [single(by_known.features)[:, PARTS[0]], single(by_pixels.features)[:, KINDS.known :]]
    clear = replace(by_pixels, features=torch.cat(both, dim=1))
    uneven = torch.from_numpy(np.random.default_rng(4).random(len(data.labels)) < 0.2).long()
    rare = told_by(replace(clients(), labels=uneven), pixels=True, noise=3.0)
    seen, ties = set(), 0
    for each in (data, mixed, clear, rare, told_by(clients(), pixels=False), replace(data, labels=data.labels * 0)):
        for client, vote in votes(each, threads=threads).items():
            rows, labels = rows_of(each, client), np.asarray(each.labels[each.examples(client).astype(np.int64)])
            kept = np.isin(labels, [label for label in labels if (labels == label).sum() > 1])
            known, pixels = (slowly(rows[kept][:, part], labels[kept]) for part in PARTS)
            assert vote == (pixels > known) - (pixels < known)
            ties += pixels == known > 0
            seen.add(vote)
    assert seen == {-1.0, 0.0, 1.0}
    assert ties > 3  # who has two classes that both tell apart says nothing of the others


def test_of_many_examples_some_are_looked_at_evenly_spaced() -> None:
    many = clients((9000, 12))
    own = torch.as_tensor(many.examples(0), dtype=torch.int64)
    many.labels[own] = many.labels[own].sort().values  # of the first few hundred all are of one class
    assert votes(told_by(many, pixels=True)) == {0: 1.0, 1: 1.0}
    assert votes(told_by(many, pixels=False)) == {0: -1.0, 1: -1.0}


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.1, 0.9], [0.05, 0.15, 0.8]])
def test_as_many_pairs_are_in_order_as_the_slow_twin_finds(shares: list[float]) -> None:
    generator = np.random.default_rng(6)
    labels = np.sort(np.append(np.arange(len(shares)).repeat(2), generator.choice(len(shares), 50, p=shares)))
    rows = generator.normal(size=(len(labels), 8)) + 0.5 * np.eye(len(shares), 8)[labels]
    assert _told_apart(torch.from_numpy(rows), torch.from_numpy(labels)) == slowly(rows, labels)


def mean_vote(known: Floats, pixels: Floats, labels: NDArray[np.int64], *, each: int) -> float:
    """Of clients who hold so many examples each, one client after the other."""
    rows = [part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-9) for part in (known, pixels)]
    features = np.hstack([*rows, np.full((len(labels), 1), 0.25)]).astype(np.float32)
    several, kinds = len(labels) // each, Kinds(known=known.shape[1])
    data = ClientTensors(
        features=torch.from_numpy(features),
        labels=torch.from_numpy(labels),
        offsets=np.arange(several + 1) * each,
        indices=np.arange(len(labels)),
        kinds=kinds,
    )
    model = Model(nn.Linear(features.shape[1], CLASSES, bias=False), fresh=True)
    task = TrainingTask(
        model=model, loss=CROSS_ENTROPY, data=data, local=LOCAL, execution=Execution(), outputs=(CLASSES,)
    )
    nowhere = torch.zeros(model.size)
    return float(np.mean([float(Votes(task, kinds=kinds).told(client, nowhere)) for client in range(several)]))


def test_no_source_is_passed_over_whatever_the_order() -> None:
    """Ten sources by turns, of which pixels tell one alone: of so many examples every tenth was looked at, all its."""
    generator = np.random.default_rng(0)
    labels = np.sort(np.arange(5120) % CLASSES)  # so that every tenth is of the first source
    told, noise = np.eye(CLASSES)[labels], generator.normal(size=(2, 5120, CLASSES))
    first = np.arange(5120)[:, None] % 10 == 0
    assert mean_vote(told + noise[0], np.where(first, told, noise[1]), labels, each=5120) == -1.0


def test_of_uneven_classes_noise_is_not_what_tells_them_apart() -> None:
    """Most of a client's examples are of one class, and a fit to noise says so of nearly all: it is right more often
    than a fit to what tells classes apart, and by how often it was, all clients voted for the noise.
    """
    generator, share = np.random.default_rng(1), np.full(CLASSES, 0.3 / (CLASSES - 1))
    share[0] = 0.7
    labels = np.concatenate([generator.choice(CLASSES, 60, p=np.roll(share, client)) for client in range(40)])
    centres = 0.25 * generator.normal(size=(CLASSES, 20))
    told, noise = centres[labels] + generator.normal(size=(2400, 20)), generator.normal(size=(2400, 500))
    assert mean_vote(noise, told, labels, each=60) > 0.5
    assert mean_vote(told, noise, labels, each=60) < -0.5


@pytest.mark.parametrize("again", [2, 3])
def test_a_burst_of_nearly_the_same_examples_is_not_told_by_itself(again: int) -> None:
    """Pixels are noise, but those of an example come several times, one after the other: the one told the other."""
    generator = np.random.default_rng(2)
    labels = generator.integers(0, 2, 2400 // again).repeat(again)  # in bursts
    noise = generator.normal(size=(2400 // again, 300)).repeat(again, axis=0) + 0.1 * generator.normal(size=(2400, 300))
    told = 0.6 * np.eye(2)[labels] @ np.eye(2, 20) + 0.3 * generator.normal(size=(2400, 20))
    assert mean_vote(told, noise, labels, each=60) < -0.2
    assert mean_vote(noise, told, labels, each=60) > 0.2


def test_examples_that_are_all_the_same_tell_nothing() -> None:
    """But for rounding, which used to decide."""
    generator = np.random.default_rng(3)
    known, pixels = (generator.random((1, width)).repeat(800, axis=0) for width in (7, 30))
    assert mean_vote(known, pixels, generator.integers(0, CLASSES, 800), each=20) == 0
    assert mean_vote(np.zeros((800, 7)), pixels, generator.integers(0, CLASSES, 800), each=20) == 0


def test_no_class_is_passed_over_whatever_the_order() -> None:
    many = clients((2048, 12))
    own = torch.as_tensor(many.examples(0), dtype=torch.int64)
    many.labels[own] = torch.arange(2048) % 4  # every fourth is of one class
    assert votes(told_by(many, pixels=True)) == {0: 1.0, 1: 1.0}


def test_what_all_examples_have_in_common_turns_no_vote() -> None:
    """Pixels tell apart two classes, of few examples, better, and all are far from zero in the same direction. A fit
    that leaves out one example, whose class is rarer then, would vote for the other kind.
    """
    some = clients((10,) * 60)
    for client in range(60):
        some.labels[torch.as_tensor(some.examples(client), dtype=torch.int64)] = torch.arange(10) % 2
    generator = np.random.default_rng(5)
    rows = generator.normal(size=(len(some.labels), FEATURES))
    signs = 2 * (some.labels.numpy()[:, None] % 2) - 1
    rows[:, PARTS[0]] += 0.3 * signs
    rows[:, PARTS[1]] += 5 + signs * np.where(np.arange(rows[:, PARTS[1]].shape[1]) % 2, 0.6, -0.6)
    rows[:, -1] = 0
    data = of_kinds(replace(some, features=torch.tensor(rows, dtype=torch.float32), scale=1.0))
    assert np.mean(list(votes(data).values())) > LEAST_LEAD


def test_pixels_whose_relation_says_the_class_are_heard() -> None:
    """A mean of such a class is where all means are: which of two colours is the stronger, say."""
    some = clients((80, 80, 80))
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(len(some.labels), FEATURES))
    common, apart = generator.normal(size=len(rows)), some.labels.numpy() / CLASSES - 0.5
    rows[:, KINDS.known] = 3 * common + apart
    rows[:, KINDS.known + 1] = 3 * common - apart
    rows[:, -1] = 0
    data = of_kinds(replace(some, features=torch.tensor(rows, dtype=torch.float32), scale=1.0))
    assert votes(data) == {0: 1.0, 1: 1.0, 2: 1.0}


def test_who_has_no_two_classes_of_several_examples_says_nothing() -> None:
    told = told_by(clients(), pixels=True)
    mine = torch.as_tensor(told.examples(2).astype(np.int64))
    assert votes(told)[2] == 1
    for own in ([1] * 30, [0, 2, 3, 4] + [1] * 26):
        labels = told.labels.clone()
        labels[mine] = torch.tensor(own)
        assert votes(replace(told, labels=labels))[2] == 0


def test_labels_of_yes_and_no_vote_as_well() -> None:
    data = told_by(clients(), pixels=True)
    yes = replace(data, labels=(data.labels > 2).float())
    engine = CohortEngine(linear(FEATURES + 1, 1, bias=False), yes, LOCAL, loss=LOGISTIC)
    weights = torch.zeros(FEATURES + 2)
    found = trained(engine, weights, WHO, round=0)
    assert np.mean([row[0] for row in found.values()]) > 0


@pytest.mark.parametrize("clip", [NormalisedClip(clip_norm=0.5), FixedClip(clip_norm=3.0)])
def test_every_vote_is_as_long_and_no_longer_than_a_bound(
    data: ClientTensors, clip: NormalisedClip | FixedClip
) -> None:
    for row in trained(CohortEngine(MODEL, data, LOCAL), start(0.0), WHO, round=0).values():
        shortened = clip.clip(row[None].astype(np.float64))[0] / clip.clip_norm
        assert np.linalg.norm(shortened) == pytest.approx(1, abs=1e-6)
        assert round(shortened[0], 6) in (-1, 0, 1)
        assert not shortened[1:-1].any()


@pytest.mark.parametrize("several", [1, 5])
@pytest.mark.parametrize("odd", [np.nan, np.inf, 3e38])
def test_what_is_no_number_tells_nothing_apart(data: ClientTensors, odd: float, several: int) -> None:
    features = single(data.features).clone()
    features[torch.as_tensor(data.examples(2), dtype=torch.int64)[:several]] = odd  # equal, so that no ridge is seen
    spoilt, usual = votes(replace(data, features=features)), votes(data)
    assert spoilt[2] in (-1, 0, 1)
    assert {client: vote for client, vote in spoilt.items() if client != 2} == {
        client: vote for client, vote in usual.items() if client != 2
    }


@pytest.mark.parametrize("round", [0, 1, 2, 7])
@pytest.mark.parametrize("chosen", [0.0, 0.5, 1.0])
def test_nobody_else_changes_what_a_client_sends(data: ClientTensors, round: int, chosen: float) -> None:
    begun = start(chosen, features=FEATURES)
    together = trained(CohortEngine(MODEL, data, BOTH, Execution(chunk=3)), begun, WHO, round=round)
    for client in WHO:
        alone = trained(CohortEngine(MODEL, data, BOTH), begun, [client], round=round)
        assert np.array_equal(alone[client], together[client])


def alone(data: ClientTensors, part: slice) -> ClientTensors:
    """The examples without the features of a part."""
    features = single(data.features).clone()
    features[:, part] = 0
    return replace(data, features=features)


def pixels_alone(data: ClientTensors) -> ClientTensors:
    return alone(data, PARTS[0])


@pytest.mark.parametrize("local", [LOCAL, LOCAL.replaced(epochs=3, batch_size=None, momentum=0.5)])
def test_later_rounds_learn_from_what_was_chosen(data: ClientTensors, local: Local) -> None:
    plain, weights = local.replaced(choice=None), MODEL.initial(RANDOMNESS)
    engine = CohortEngine(MODEL, data, local)
    kept, chosen = (trained(engine, start(choice), WHO) for choice in (0.0, 1.0))
    for found, part in ((kept, PARTS[1]), (chosen, PARTS[0])):
        assert_close(found, trained(CohortEngine(MODEL, alone(data, part), plain), weights, WHO), tolerance=1e-6)
    assert max(float(np.abs(chosen[k] - kept[k]).max()) for k in WHO) > 1e-3


def test_a_centre_is_that_of_what_was_chosen(data: ClientTensors) -> None:
    engine = CohortEngine(MODEL, data, BOTH)
    found = trained(engine, start(1.0, features=FEATURES), WHO, round=1)
    for client, row in found.items():
        assert row[:FEATURES] / 2**20 == pytest.approx(
            rows_of(pixels_alone(data), client)[:, :-1].mean(axis=0), abs=1e-6
        )


@pytest.mark.parametrize("chosen", [0.0, 0.5, 1.0])
def test_the_published_model_takes_examples_as_they_are(data: ClientTensors, chosen: float) -> None:
    found = opening(data, BOTH)
    off = rows_of(data, 3)[:, :-1].mean(axis=0)
    begun = np.concatenate([start(chosen).double().numpy(), off])
    weights, beside = found.divided(torch.tensor(begun, dtype=torch.float32))
    prepared = found.prepared(data, beside, before=2)
    published = found.published(begun).reshape(CLASSES, -1)
    for client in WHO:
        seen = rows_of(prepared, client) @ weights.double().numpy().reshape(CLASSES, -1).T
        assert rows_of(data, client) @ published.T == pytest.approx(seen, abs=1e-5)


SEEN = {-1.0: "pictures", 1.0: "pixels", 0.5: "both"}


def test_a_kind_is_chosen_if_votes_say_so_clearly(data: ClientTensors) -> None:
    found, begun = opening(data), start(0.0).double().numpy()
    assert found.chosen(begun) is None  # nor after a round that was lost
    lead = CLEARLY * 0.2
    means = {0.0: 0.5, -1.0: -1, lead - 1e-6: 0.5, lead + 1e-6: 1, 1e-6 - lead: 0.5, -lead - 1e-6: -1, 1.0: 1}
    for mean, chosen in means.items():
        learnt = found.learnt(begun, 0, told(mean), 0.2)
        assert np.array_equal(learnt[:-1], begun[:-1])
        assert learnt[-1] == chosen
        assert found.chosen(learnt) == SEEN[chosen]
    assert opening(data, LOCAL.replaced(choice=None, centre=0.1)).chosen(start(features=FEATURES).numpy()) is None


def told(mean: float) -> Floats:
    released = np.zeros(MODEL.size)
    released[0] = mean
    return released


def test_a_few_do_not_decide_for_all_however_little_noise_there_is(data: ClientTensors) -> None:
    found, begun = opening(data), start(0.0).double().numpy()
    for mean, chosen in ((LEAST_LEAD - 1e-6, 0.5), (LEAST_LEAD + 1e-6, 1)):
        assert found.learnt(begun, 0, told(mean), 1e-4)[-1] == chosen
    for mean, chosen in ((1e-6 - LEAST_OF_PICTURES, 0.5), (-LEAST_OF_PICTURES - 1e-6, -1)):
        assert found.learnt(begun, 0, told(mean), 1e-4)[-1] == chosen


def test_seen_as_both_an_example_is_as_long_and_has_a_fifth_of_its_square_in_pixels(data: ClientTensors) -> None:
    found = opening(data)
    _, beside = found.divided(start(0.5))
    for client in WHO:
        before, after = rows_of(data, client), rows_of(found.prepared(data, beside, before=1), client)
        assert np.array_equal(before[:, -1], after[:, -1])
        for part, share in zip(PARTS, (0.8, 0.2), strict=True):
            assert after[:, part] == pytest.approx(before[:, part] * share**0.5, abs=1e-6)


def test_each_round_finds_its_own(data: ClientTensors) -> None:
    found, released = opening(data, BOTH), np.random.default_rng(4).normal(size=MODEL.size)
    begun = found.start(np.zeros(MODEL.size))
    first, second = (found.learnt(begun, number, released + 5, 0.3) for number in (0, 1))
    assert (found.rounds, found.beside, found.size) == (2, FEATURES + 1, MODEL.size + FEATURES + 1)
    assert np.flatnonzero(first).tolist() == [MODEL.size]
    assert np.flatnonzero(second).min() > MODEL.size


MODELS: dict[str, tuple[Model, Loss]] = {
    "a bias": (linear(FEATURES + 1, CLASSES), CROSS_ENTROPY),
    "hidden layers": (mlp((FEATURES + 1, 8, CLASSES), bias=False), CROSS_ENTROPY),
    "another module": (
        Model(nn.Sequential(nn.Linear(FEATURES + 1, CLASSES, bias=False), nn.Tanh())),
        CROSS_ENTROPY,
    ),
    "numbers": (linear(FEATURES + 1, 1, bias=False), SQUARED),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_for_linear_models_of_classes(data: ClientTensors, name: str) -> None:
    model, loss = MODELS[name]
    with pytest.raises(ConfigError, match=r"local\.choice"):
        KindChoice.of(model, data, loss=loss)


def test_it_is_for_one_label_each(data: ClientTensors) -> None:
    several = replace(data, labels=torch.zeros(len(data.labels), 3))
    with pytest.raises(ConfigError, match=r"local\.choice = 'logistic'"):
        KindChoice.of(linear(FEATURES + 1, 3, bias=False), several, loss=LOGISTIC)


def test_it_is_between_two_kinds(data: ClientTensors) -> None:
    with pytest.raises(ConfigError, match=r"local\.choice = 'features': it is between pictures and their pixels"):
        CohortEngine(MODEL, replace(data, kinds=None), LOCAL)


def test_who_is_made_up_has_something_to_tell_apart(data: ClientTensors) -> None:
    nobody = opening(data).made_up(data)
    assert torch.unique(nobody.labels, return_counts=True)[1].tolist() == [2, 2]
    assert not single(nobody.features).any()
    centre = opening(data, LOCAL.replaced(choice=None, centre=0.1))
    assert not centre.made_up(data).labels.any()  # whose labels may be anything


@pytest.mark.parametrize("local", [LOCAL, BOTH])
def test_a_rehearsal_goes_through_all_kinds_of_rounds_and_reads_nobody(data: ClientTensors, local: Local) -> None:
    nothing = replace(data, features=torch.full_like(single(data.features), torch.nan))
    engine = CohortEngine(MODEL, nothing, local)
    engine.rehearse(torch.zeros(engine.start_size))
    with pytest.raises(ConfigError, match="weights and what was found before"):
        engine.rehearse(MODEL.initial(RANDOMNESS))


def test_clients_of_these_sizes_are_meant() -> None:
    assert len(SIZES) == len(WHO)
