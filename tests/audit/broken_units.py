"""Silos, devices, shares of noise and masked sums that are broken on purpose."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from incrowd._random import Floats, Integers, SeededRandomness, Stream
from incrowd.learning.dpsgd import engine
from incrowd.learning.dpsgd.engine import ClippedSums
from incrowd.parties import secure_sum
from incrowd.parties.roster import digest
from incrowd.parties.secure_sum import Member, SumPlan
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism import whole_noise
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.mechanism.device import Mechanism
from incrowd.privacy.mechanism.grid import RecordTraining, Whole
from incrowd.privacy.mechanism.shared import NoiseShare, SharedNoise
from incrowd.privacy.mechanism.whole_noise import ChosenDirection, WholeLaplace
from incrowd.privacy.paid import ShareRun
from incrowd.privacy.plan import forms
from tests.audit.broken import Breakage, after, both, changed, clip_twice, instead, noise_is


def first_step_alone(real: Callable[..., Floats]) -> Callable[..., Floats]:
    """Later steps of a silo's round are released as they are."""

    def noised(self: RecordTraining, total: Floats, *, receipt: Any, at: Any) -> Floats:
        hidden = real(self, total, receipt=receipt, at=at)
        return total if at[-1] else hidden

    return noised


def one_step_for_all(real: Callable[..., Floats]) -> Callable[..., Floats]:
    """Every step of a silo's round has the noise of its first."""
    drawn: dict[int, Floats] = {}

    def noised(self: RecordTraining, total: Floats, *, receipt: Any, at: Any) -> Floats:
        hidden = real(self, total, receipt=receipt, at=at) - total
        return total + drawn.setdefault(at[1], hidden)

    return noised


clip_off = instead(FixedClip, "factors", lambda self, norms: np.ones_like(norms))


def clip_of_the_batch(self: ClippedSums, rows: torch.Tensor, clip: FixedClip) -> None:
    """A batch's gradients are scaled by their mean norm, in place of each by its own."""
    norms = self.gradients.norms(*self.take(rows)).numpy()
    finite = np.isfinite(norms)
    mean = float(np.where(finite, norms, 0.0).mean())
    factors = np.full(len(norms), min(1.0, clip.clip_norm / max(mean, 1e-9))) * finite
    self.gradients.add(torch.from_numpy(factors))


def divided_by_the_batch() -> AbstractContextManager[None]:
    """A step's sum is divided by how many records were drawn."""
    sizes: list[int] = []

    def noted(rows: Integers) -> Integers:
        sizes.append(len(rows))
        return rows

    def move(real: Callable[..., None]) -> Callable[..., None]:
        return lambda *given: real(*given[:-1], max(1, sizes[-1]) * 1.02)

    return both(after(engine, "_poisson", noted), changed(engine, "_step", move))()


def shuffled(count: int, training: RecordTraining, *, batches: Stream) -> Iterator[Integers]:
    """Records are shuffled and cut into batches, and priced as Poisson samples."""
    yield from np.array_split(np.argsort(batches.bits(count)), training.steps)


shuffle_as_poisson = instead(engine, "poisson_batches", shuffled)
ledger_anew_each_run = instead(Ledger, "_check_budget", lambda self, *given: None)


def laplace_is(factor: float) -> Breakage:
    """A device's noise of another scale than what is charged."""
    return changed(
        whole_noise, "discrete_laplace", lambda real: lambda scale, **given: real(max(1, int(factor * scale)), **given)
    )


def laplace_in_floats(self: WholeLaplace, bounded: Integers, *, receipt: Any, at: Any) -> Whole:
    """Noise in floating point, whose low bits tell."""
    stream = receipt.noise_stream(self, *at)
    return Whole(steps=bounded + self.scale * stream.laplaces(self.size), step=self.step)


def _fresh_stream(real: Callable[..., Integers]) -> Callable[..., Integers]:
    return lambda scale, *, size, stream: real(scale, size=size, stream=SeededRandomness(seed=0).stream("noise"))


bounded_twice = changed(
    WholeLaplace, "bounded", lambda real: lambda self, row: real(replace(self, bound=2 * self.bound), row)
)
noise_for_one_coordinate = changed(
    WholeLaplace,
    "fitting",
    lambda real: classmethod(lambda cls, *, distances, **given: real.__func__(cls, distances=1, **given)),
)


def weighed(steps: Integers) -> Integers:
    """The first number of a direction counts twice."""
    return steps * np.where(np.arange(len(steps)) == 0, 2, 1)


def always_true(word: Callable[[], int], loss: int) -> bool:
    """A device never lies."""
    word()
    return loss < 0


lies_too_rarely = changed(whole_noise, "survives", lambda real: lambda word, loss: real(word, 2 * loss))


def noise_after_rounding(real: Callable[..., Whole]) -> Callable[..., Whole]:
    """A part is rounded to the coarse grid of the sum before its share of the noise is added."""

    def add(self: NoiseShare, part: Whole, **given: Any) -> Whole:
        return real(self, Whole(steps=part.on(self.shared.step), step=self.shared.step), **given)

    return add


def share_is(factor: float) -> Breakage:
    """A share of another size than the plan's."""
    return after(SharedNoise, "deviation", lambda deviation: factor * float(deviation))


def noise_of_the_number(real: Callable[..., Any]) -> Callable[..., Any]:
    """In earnest a share's noise follows from the number of its round."""

    def share(self: ShareRun, number: int, asked: NoiseShare) -> Any:
        self.randomness = self.randomness if self.randomness.simulated else SeededRandomness(seed=number)
        return real(self, number, asked)

    return share


def short_for_some_lists(real: Callable[..., float]) -> Callable[..., float]:
    """A share is too small unless the list is the shortest or the longest."""
    return lambda self, listed: (0.01 if self.colluders + 1 < listed < self.parties else 1.0) * real(self, listed)


def mask_of_the_first_round() -> AbstractContextManager[None]:
    """Each pair of parties has one mask for all rounds."""
    kept: dict[tuple[str, str], bytes] = {}

    def make(real: Callable[..., None]) -> Callable[..., None]:
        return lambda self, words, peer, key: real(self, words, peer, kept.setdefault((self.name, peer), key))

    return changed(Member, "_mask", make)()


def mask_from(secret: Callable[[bytes], bytes], *, about: bool) -> Breakage:
    """Masks that follow from another secret, or not from all that they are about."""

    def make(real: Callable[..., bytes]) -> Callable[..., bytes]:
        def key(given: bytes, name: str, *rest: object) -> bytes:
            return real(secret(given), name, *(rest if about else ())) if name == "mask" else real(given, name, *rest)

        return key

    return changed(secure_sum, "_key", make)


OTHERS: Sequence[tuple[str, str, Breakage, str]] = (
    # what is attacked, the name, the breakage, and what has to speak against it
    ("silo", "noise a tenth short", noise_is(0.9), "noise of the steps"),
    (
        "silo",
        "noise in the first step alone",
        changed(RecordTraining, "noised", first_step_alone),
        "noise of the steps",
    ),
    ("silo", "noise of one step for all", changed(RecordTraining, "noised", one_step_for_all), "noise of two steps"),
    ("silo", "gradients not clipped", clip_off, "rounds of ward"),
    ("silo", "gradients clipped at twice the bound", clip_twice, "longest gradient"),
    ("silo", "clipped by their batch", instead(ClippedSums, "_add", clip_of_the_batch), "noise of the steps"),
    ("silo", "divided by the batch", divided_by_the_batch, "divisor of a step"),
    ("silo", "a shuffle priced as Poisson", shuffle_as_poisson, "spread of the draws"),
    ("silo", "a ledger that begins anew for each run", ledger_anew_each_run, "may spend together"),
    ("sums", "noise of the server a tenth short", noise_is(0.9), "noise of the steps"),
    ("sums", "gradients not clipped", clip_off, "rounds of all silos"),
    ("sums", "gradients clipped at twice the bound", clip_twice, "longest gradient"),
    ("sums", "all records in every batch", shuffle_as_poisson, "how often a record"),
    ("sums", "a ledger that begins anew for each run", ledger_anew_each_run, "may spend together"),
    ("shared sums", "share too small", share_is(0.8), "noise of the steps"),
    ("sums seen by colluders", "share too small", share_is(0.8), "noise of the steps"),
    ("whole", "noise a tenth short", laplace_is(0.9), "noise of a contribution"),
    ("whole", "noise in floats", instead(WholeLaplace, "noised", laplace_in_floats), "what a contribution is made of"),
    ("whole", "noise from a seed", changed(whole_noise, "discrete_laplace", _fresh_stream), "noise that comes again"),
    ("whole", "a gradient bounded at twice the bound", bounded_twice, "longest gradient"),
    ("numbers", "noise of one coordinate for all", noise_for_one_coordinate, "price of a contribution"),
    (
        "feature",
        "a column that is told several times and paid once",
        instead(Mechanism, "_charged", lambda self, unit: self._sensitivity(self.privacy)),
        "price of a column",
    ),
    ("gaussian", "noise halved", noise_is(0.5), "noise of a contribution"),
    ("direction", "never lies", instead(whole_noise, "survives", always_true), "two tables"),
    ("direction", "lies too rarely, by count", lies_too_rarely, "how often"),
    ("direction", "numbers of several sizes", after(ChosenDirection, "steps_of", weighed), "size of the numbers"),
    (
        "direction",
        "one direction for all",
        instead(ChosenDirection, "named", lambda self, bounded, word: 5 if bounded[0] > 0 else 6),
        "come again",
    ),
    ("shares", "noise after rounding", changed(NoiseShare, "add", noise_after_rounding), "what rounding makes"),
    ("shares", "share too small by 2 %", share_is(0.98), "noise of a share"),
    ("shares", "noise of the number", changed(ShareRun, "share", noise_of_the_number), "shares of two draws"),
    ("shares", "short for some lists", changed(SharedNoise, "deviation", short_for_some_lists), "noise of a share"),
    ("shares", "mask reused", mask_of_the_first_round, "masks of two rounds"),
    ("shares", "list not bound", mask_from(lambda secret: secret, about=False), "masks of two lists"),
    (
        "shares",
        "roster not bound",
        instead(SumPlan, "name", property(lambda self: digest(forms.to_json(self.plan), self.size, self.label))),
        "parties with two rosters",
    ),
    (
        "shares",
        "ratchet not advanced",
        instead(secure_sum, "_moved", lambda key, since, number: key),
        "keys of a round",
    ),
    ("shares", "masks without a secret", mask_from(lambda _: bytes(32), about=True), "masks without the secrets"),
)
