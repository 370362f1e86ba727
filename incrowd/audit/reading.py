"""Whose pictures are they? What is read out of updates and out of released means, tried on many clients.

`incrowd.audit.inversion` reads pictures of one client. Here the attacker has the pictures of somebody, reads an update,
or the mean that a round released, and says by how alike the two are whether they belong together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from incrowd._random import Floats, SeededRandomness
from incrowd.audit.bounds import SURE
from incrowd.audit.finding import Finding, Strip
from incrowd.audit.inversion import by_class, by_unit, own_pictures, plan_to_show, reads, seen, standard
from incrowd.audit.odds import allowed, odds
from incrowd.errors import ConfigError
from incrowd.runs.client_work import ClientWork
from incrowd.runs.plots import axes

CLIENTS, FEW_CLIENTS = 40, 20
"""So many clients are read."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadOut:
    """A client's own pictures, the like of each that was read, and the mean correlation of the two."""

    own: Floats
    read: Floats
    alike: float


def reading(work: ClientWork, *, clients: int, seed: int) -> tuple[list[Finding], list[Strip]]:
    """Read so many clients of the first round, and show what was read of the first of them.

    Guarantee: no ledger is opened. Of the released mean each client is tried twice, in and out, by rounds of noise of
    their own, so that what the promise allows stands beside it. Of an update there is no such claim: with `Private` the
    server is trusted with it.

    Edge cases: models and data that nothing is read of (`reads`), and fewer than two clients, are a `ConfigError`.
    """
    plan, count = plan_to_show(work), min(clients, work.data.present)
    if reads(work) is None or count < 2:
        remedy = "pictures are read from linear models and perceptrons on grey pixels, of two clients or more"
        raise ConfigError(field="model.kind", value=str(work.model.layout.shapes), remedy=remedy)
    start = np.zeros(work.model.size)
    if reads(work) == "units":
        start = work.model.initial(SeededRandomness(seed=seed)).numpy().astype(np.float64)
    own, others, inside, outside = (list[ReadOut]() for _ in range(4))
    for client in range(count):
        update, released = seen(work, plan, start, client=client, seed=seed + 2 * client)
        _, without = seen(work, plan, start, client=client, seed=seed + 2 * client + 1, there=False)
        for found, weights, whose in (
            (own, update, client),
            (others, update, (client + 1) % count),
            (inside, released, client),
            (outside, without, client),
        ):
            found.append(told(work, weights, client=whose))
    epsilon, delta = plan.price.epsilon, plan.budget.delta
    found_out = [
        _finding("whose pictures are they? Read out of a client's update", own, others, claimed=None, delta=delta),
        _finding("was this client in? Read out of the released mean", inside, outside, claimed=epsilon, delta=delta),
    ]
    noised = "with noise of its own" if plan.place == "local" else "without noise"
    strips = [
        Strip(title="what a client has", pictures=own[0].own),
        Strip(title=f"read out of its update, {noised}: {own[0].alike:.2f}", pictures=own[0].read),
        Strip(title=f"read out of the released mean: {inside[0].alike:.2f}", pictures=inside[0].read),
    ]
    return found_out, strips


def told(work: ClientWork, weights: Floats, *, client: int) -> ReadOut:
    """The like of a client's pictures in what some weights tell: of its classes, or of each of its pictures."""
    shape, classes, shapes = work.data.examples.shape, work.data.examples.classes, work.model.layout.shapes
    pictures, labels = own_pictures(work, client)
    if reads(work) == "classes" and classes is not None:
        held = np.unique(labels).astype(np.int64)
        own = np.array([pictures[labels == label].mean(axis=0) for label in held])
        read = by_class(weights[: classes * shape[0] * shape[1]], classes, shape)[held]
    else:
        own, units = pictures, by_unit(weights, shapes[0])
        likeness = standard(own.reshape(len(own), -1)) @ standard(units).T
        read = units[likeness.argmax(axis=1)].reshape(own.shape)
    pairs = standard(own.reshape(len(own), -1)) * standard(read.reshape(len(read), -1))
    return ReadOut(own=own, read=read, alike=float(pairs.sum(axis=1).mean()))


def draw(path: Path, strips: Sequence[Strip]) -> None:
    """Rows of pictures, one below the other, each picture from its darkest to its lightest."""
    count = max(len(strip.pictures) for strip in strips)
    with axes(path, columns=1, rows=len(strips), height=min(1.0, 9 / count)) as places:
        for place, strip in zip(places, strips, strict=True):
            scaled = [(one - one.min()) / max(float(one.max() - one.min()), 1e-12) for one in strip.pictures]
            for column, picture in enumerate(scaled):
                place.imshow(picture, cmap="gray_r", extent=(1.1 * column, 1.1 * column + 1, 0, 1), vmin=0, vmax=1)
            place.set(xlim=(-0.05, 1.1 * count), ylim=(-0.02, 1.02), xticks=[], yticks=[])
            place.set_title(strip.title, loc="left", fontsize=9)
            place.spines[:].set_visible(False)


def _finding(
    attack: str, inside: Sequence[ReadOut], outside: Sequence[ReadOut], *, claimed: float | None, delta: float
) -> Finding:
    ins, outs = (np.array([one.alike for one in each]) for each in (inside, outside))
    found = odds(ins, outs, confidence=SURE)
    return Finding(
        attack=attack,
        unit="client",
        claimed=claimed,
        delta=delta,
        auc=found.auc,
        true_positives=found.true_positives,
        allowed=None if claimed is None else allowed(found.false_positives_at_most, epsilon=claimed, delta=delta),
        trials=ins.size + outs.size,
        note=f"alike by {ins.mean():.2f}, and by {outs.mean():.2f} where it is not so",
    )
