"""What a curious server reads out of one client's update: pictures, where a softmax regression learns from pixels.

The first gradient of such a model is, class by class, the sum of the client's pictures of that class less a share of
all its pictures (Zhu, Liu, Han 2019 invert any model by search; of this one nothing need be searched). Whoever has the
update has the client's mean picture of each class: exactly where it has none of some class, otherwise up to one picture
that all have in common. With noise of the client's own on the update (local privacy), or of the released mean in its
place, it has noise.
"""

from dataclasses import dataclass

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
    shape = work.data.examples.shape
    classes = work.data.examples.classes
    if classes is None or len(shape) != 2 or work.model.layout.shapes[0] != (classes, shape[0] * shape[1]):
        remedy = "what is read here are pictures from a softmax regression: features none, model linear, grey pictures"
        raise ConfigError(field="model.kind", value=str(work.model.layout.shapes), remedy=remedy)
    if not work.data.public:
        remedy = "what is shown are examples of a client: only public ones may be"
        raise ConfigError(field="data.public", value=False, remedy=remedy)
    if not isinstance(work.plan, Plan):
        raise ConfigError(field="privacy.noise", value="correlated", remedy="give independent noise")
    update, released = _seen(work, work.plan, client=client, seed=seed)
    examples = work.data.examples.some(work.data.client(client))
    pictures = np.asarray(examples.values(slice(None)), dtype=np.float64).reshape(len(examples), *shape)
    own = np.unique(examples.labels).astype(np.int64)
    originals = np.array([pictures[examples.labels == label].mean(axis=0) for label in own])
    read = [_pictures(weights[: classes * shape[0] * shape[1]], classes, shape)[own] for weights in (update, released)]
    alike = (_alike(originals, read[0]), _alike(originals, read[1]))
    return Inverted(classes=own, originals=originals, from_update=read[0], from_release=read[1], alike=alike)


def _seen(work: ClientWork, plan: Plan, *, client: int, seed: int) -> tuple[Floats, Floats]:
    """What a server sees of the client, with the client's own noise where that is local, and what the public sees."""
    randomness = SeededRandomness(seed=seed)
    start = np.zeros(work.model.size)
    trainer = EngineTrainer(work.engine, start, randomness=randomness)

    def run() -> PrivateRun:
        ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
        return PrivateRun(plan, ledger=ledger, randomness=randomness, size=work.model.size, label="audit")

    everybody = run().round(0)
    everybody.ask(trainer, present=work.engine.present)
    released = everybody.release().mean
    if plan.place == "local":
        alone = run().round(0)
        alone.ask(trainer, present=lambda cohort: cohort[cohort == client])
        return alone.release().total.values, released
    (chunk,) = trainer.cohort([client], round=0).chunks()
    return chunk.rows()[0].astype(np.float64), released


def _pictures(weights: Floats, classes: int, shape: tuple[int, ...]) -> Floats:
    """The sum of each class's pictures, up to a factor: a class that has none tells what was taken from all."""
    rows = weights.reshape(classes, -1)
    found: Floats = (rows - rows[rows.sum(axis=1).argmin()]).reshape(classes, *shape)
    return found


def _alike(originals: Floats, read: Floats) -> float:
    """How much what was read is like what there was: the mean correlation over the classes."""
    pairs = zip(originals.reshape(len(originals), -1), read.reshape(len(read), -1), strict=True)
    return float(np.mean([_correlation(one, other) for one, other in pairs]))


def _correlation(one: Floats, other: Floats) -> float:
    first, second = one - one.mean(), other - other.mean()
    length = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / length if length > 0 else 0.0
