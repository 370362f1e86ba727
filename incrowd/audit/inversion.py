"""What a curious server reads out of one client's update: pictures, where a model learns from pixels.

The first gradient of a softmax regression is, class by class, the sum of the client's pictures of that class less a
share of all its pictures (Zhu, Liu, Han 2019 invert any model by search; of these nothing need be searched). Whoever
has the update has the client's mean picture of each class: exactly where it has none of some class, otherwise up to one
picture that all have in common. In the first layer of a perceptron the gradient of a unit's weights, over that of its
bias, is a mean of the pictures that the unit fires at (Geiping et al. 2020), and some unit fires at one of them alone.
With noise of the client's own on the update (local privacy), or of the released mean in its place, it has noise.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from incrowd._random import Floats, Integers, SeededRandomness
from incrowd.errors import ConfigError
from incrowd.learning.cohort import EngineTrainer
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.release import PrivateRun
from incrowd.runs.client_work import ClientWork


@dataclass(frozen=True, kw_only=True, eq=False)
class Inverted:
    """What was read of one client: its mean picture of each of its `classes`, [classes, height, width], and what came
    out, from its own update, and from the released mean of a round that it was in.

    `alike` is the mean correlation of what came out with what there was: of the update, and of the released mean.
    """

    classes: Integers
    originals: Floats
    from_update: Floats
    from_release: Floats
    alike: tuple[float, float]


def inverted(work: ClientWork, *, client: int, seed: int) -> Inverted:
    """Read the update of one client's first round.

    Guarantee: no ledger is opened.

    Edge cases: models that are no softmax regression, examples that are no grey pictures, data that are not public, and
    noise that is correlated over rounds are a `ConfigError`.
    """
    shape, classes = work.data.examples.shape, work.data.examples.classes
    if classes is None or reads(work) != "classes":
        remedy = "what is read here are pictures from a softmax regression: features none, model linear, grey pictures"
        raise ConfigError(field="model.kind", value=str(work.model.layout.shapes), remedy=remedy)
    plan = plan_to_show(work)
    update, released = seen(work, plan, np.zeros(work.model.size), client=client, seed=seed)
    pictures, labels = own_pictures(work, client)
    own = np.unique(labels).astype(np.int64)
    originals = np.array([pictures[labels == label].mean(axis=0) for label in own])
    read = [by_class(weights[: classes * shape[0] * shape[1]], classes, shape)[own] for weights in (update, released)]
    alike = (_alike(originals, read[0]), _alike(originals, read[1]))
    return Inverted(classes=own, originals=originals, from_update=read[0], from_release=read[1], alike=alike)


@dataclass(frozen=True, kw_only=True, eq=False)
class Fired:
    """What was read of one client out of the first layer of a perceptron: its pictures, [pictures, height, width], and
    for each the most alike of those that the units tell, from its update and from the released mean.

    `alike` is the mean correlation of the two with what there was, and `by_chance` that of what another client's update
    tells: pictures of one kind resemble each other.
    """

    originals: Floats
    from_update: Floats
    from_release: Floats
    alike: tuple[float, float]
    by_chance: float


def fired(work: ClientWork, *, client: int, other: int, seed: int) -> Fired:
    """Read the update of one client's first round unit by unit.

    Guarantee: no ledger is opened.

    Edge cases: models whose first layer has no bias or does not see the pixels of grey pictures, data that are not
    public, and noise that is correlated over rounds are a `ConfigError`.
    """
    shapes = work.model.layout.shapes
    if reads(work) != "units":
        remedy = "what is read here are pictures from a perceptron: features none, model mlp with bias, grey pictures"
        raise ConfigError(field="model.kind", value=str(shapes), remedy=remedy)
    plan = plan_to_show(work)
    start = work.model.initial(SeededRandomness(seed=seed)).numpy().astype(np.float64)
    update, released = seen(work, plan, start, client=client, seed=seed)
    of_another, _ = seen(work, plan, start, client=other, seed=seed)
    pictures, _ = own_pictures(work, client)
    best, alike = [], []
    for weights in (update, released, of_another):
        told = by_unit(weights, shapes[0])
        likeness = standard(pictures.reshape(len(pictures), -1)) @ standard(told).T
        best.append(told[likeness.argmax(axis=1)].reshape(pictures.shape))
        alike.append(float(likeness.max(axis=1).mean()))
    return Fired(
        originals=pictures, from_update=best[0], from_release=best[1], alike=(alike[0], alike[1]), by_chance=alike[2]
    )


def reads(work: ClientWork) -> Literal["classes", "units"] | None:
    """What can be read of such a model: the mean picture of each class, or what each unit fires at; or nothing."""
    shape, classes, shapes = work.data.examples.shape, work.data.examples.classes, work.model.layout.shapes
    if len(shape) != 2:
        return None
    if classes is not None and shapes[0] == (classes, shape[0] * shape[1]):
        return "classes"
    return "units" if len(shapes) >= 4 and shapes[0] == (*shapes[1], shape[0] * shape[1]) else None


def plan_to_show(work: ClientWork) -> Plan:
    """The plan of what may be shown."""
    if not work.data.public:
        remedy = "what is shown are examples of a client: only public ones may be"
        raise ConfigError(field="data.public", value=False, remedy=remedy)
    if not isinstance(work.plan, Plan):
        raise ConfigError(field="privacy.noise", value="correlated", remedy="give independent noise")
    return work.plan


def own_pictures(work: ClientWork, client: int) -> tuple[Floats, Integers]:
    """The pictures of a client, and their labels."""
    examples = work.data.examples.some(work.data.client(client))
    pictures = np.asarray(examples.values(slice(None)), dtype=np.float64)
    return pictures.reshape(len(examples), *work.data.examples.shape), examples.labels.astype(np.int64)


def by_unit(weights: Floats, shape: tuple[int, ...]) -> Floats:
    """For each unit that fired, the change of its weights over that of its bias."""
    units, pixels = shape
    changed, of_bias = weights[: units * pixels].reshape(units, pixels), weights[units * pixels :][:units]
    there = np.abs(of_bias) > 1e-9 * np.abs(of_bias).max()
    told: Floats = changed[there] / of_bias[there, None]
    return told


def seen(
    work: ClientWork, plan: Plan, start: Floats, *, client: int, seed: int, there: bool = True
) -> tuple[Floats, Floats]:
    """What a server sees of the client, with the client's own noise where that is local, and what the public sees, of a
    round that the client is in unless it is not `there`.
    """
    randomness = SeededRandomness(seed=seed)
    trainer = EngineTrainer(work.engine, start, randomness=randomness)

    def run() -> PrivateRun:
        ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
        return PrivateRun(plan, ledger=ledger, randomness=randomness, size=work.model.size, label="audit")

    everybody = run().round(0)
    everybody.ask(trainer, present=lambda cohort: work.engine.present(cohort[there | (cohort != client)]))
    released = everybody.release().mean
    if plan.place == "local":
        alone = run().round(0)
        alone.ask(trainer, present=lambda cohort: cohort[cohort == client])
        return alone.release().total.values, released
    (chunk,) = trainer.cohort([client], round=0).chunks()
    return chunk.rows()[0].astype(np.float64), released


def by_class(weights: Floats, classes: int, shape: tuple[int, ...]) -> Floats:
    """The sum of each class's pictures, up to a factor: a class that has none tells what was taken from all."""
    rows = weights.reshape(classes, -1)
    found: Floats = (rows - rows[rows.sum(axis=1).argmin()]).reshape(classes, *shape)
    return found


def _alike(originals: Floats, read: Floats) -> float:
    """How much what was read is like what there was: the mean correlation over the classes."""
    pairs = standard(originals.reshape(len(originals), -1)) * standard(read.reshape(len(read), -1))
    return float(pairs.sum(axis=1).mean())


def standard(rows: Floats) -> Floats:
    """Each row less its mean, of length 1: then products are correlations. What does not vary is like nothing."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    found: Floats = np.divide(centred, lengths, out=np.zeros_like(centred), where=lengths > 0)
    return found
