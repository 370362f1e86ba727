"""Silos and devices that are broken on purpose, for as long as a `with` block lasts."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from incrowd._random import Floats, Integers, SeededRandomness, Stream
from incrowd.learning.dpsgd import engine, records
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
from incrowd.privacy.mechanism.whole_noise import WholeLaplace
from incrowd.privacy.paid import ShareRun
from incrowd.privacy.plan import forms
from tests.audit.broken import changed, clip_twice, noise_is

Breakage = Callable[[], AbstractContextManager[None]]


def noise_of_the_first_step_alone() -> AbstractContextManager[None]:
    """Later steps of a round are released as they are."""

    def make(real: Callable[..., Floats]) -> Callable[..., Floats]:
        def noised(self: RecordTraining, total: Floats, *, receipt: Any, at: Any) -> Floats:
            hidden = real(self, total, receipt=receipt, at=at)
            return total if at[-1] else hidden

        return noised

    return changed(RecordTraining, "noised", make)


def noise_of_one_step_for_all() -> AbstractContextManager[None]:
    """Every step of a round has the noise of its first."""
    drawn: dict[int, Floats] = {}

    def make(real: Callable[..., Floats]) -> Callable[..., Floats]:
        def noised(self: RecordTraining, total: Floats, *, receipt: Any, at: Any) -> Floats:
            hidden = real(self, total, receipt=receipt, at=at) - total
            return total + drawn.setdefault(at[1], hidden)

        return noised

    return changed(RecordTraining, "noised", make)


def clip_off() -> AbstractContextManager[None]:
    """Gradients are as long as they are."""
    return changed(FixedClip, "factors", lambda real: lambda self, norms: np.ones_like(norms))


def clip_of_the_batch() -> AbstractContextManager[None]:
    """A batch's gradients are scaled by their mean norm, in place of each by its own."""

    def add(self: ClippedSums, rows: torch.Tensor, clip: FixedClip) -> None:
        norms = self.gradients.norms(*self.take(rows)).numpy()
        finite = np.isfinite(norms)
        mean = float(np.where(finite, norms, 0.0).mean())
        factors = np.full(len(norms), min(1.0, clip.clip_norm / max(mean, 1e-9))) * finite
        self.gradients.add(torch.from_numpy(factors))

    return changed(ClippedSums, "_add", lambda real: add)


def divided_by_the_batch() -> AbstractContextManager[None]:
    """A step's sum is divided by how many records were drawn."""
    sizes: list[int] = []

    def draw(real: Callable[..., Integers]) -> Callable[..., Integers]:
        def poisson(records: int, prob: float, stream: Stream) -> Integers:
            rows = real(records, prob, stream)
            sizes.append(len(rows))
            return rows

        return poisson

    def move(real: Callable[..., None]) -> Callable[..., None]:
        def step(self: object, noised: torch.Tensor, expected_batch: float) -> None:
            real(self, noised, max(1, sizes[-1]) * 1.02)

        return step

    @contextmanager
    def both() -> Iterator[None]:
        with changed(records, "_poisson", draw), changed(engine._Walk, "step", move):
            yield

    return both()


def batches_of_a_shuffle() -> AbstractContextManager[None]:
    """Records are shuffled and cut into batches, and priced as Poisson samples."""

    def make(_real: object) -> Callable[..., Iterator[Integers]]:
        def shuffled(count: int, training: RecordTraining, *, batches: Stream) -> Iterator[Integers]:
            order = np.argsort(batches.bits(count))
            yield from np.array_split(order, training.steps)

        return shuffled

    return changed(engine, "poisson_batches", make)


def spends_from_nothing_each_run() -> AbstractContextManager[None]:
    """Each run's plan is reserved as if nothing had been spent."""
    return changed(Ledger, "_check_budget", lambda real: lambda self, *given: None)


def laplace_is(factor: float) -> Breakage:
    """A device's noise of another scale than what is charged."""

    def make(real: Callable[..., Integers]) -> Callable[..., Integers]:
        def drawn(scale: int, *, size: int, stream: Stream) -> Integers:
            return real(max(1, int(factor * scale)), size=size, stream=stream)

        return drawn

    return lambda: changed(whole_noise, "discrete_laplace", make)


def laplace_in_floats() -> AbstractContextManager[None]:
    """Noise in floating point, whose low bits tell."""

    def noised(self: WholeLaplace, bounded: Integers, *, receipt: Any, at: Any) -> Whole:
        stream = receipt.noise_stream(self, *at)
        return Whole(steps=bounded + self.scale * stream.laplaces(self.size), step=self.step)

    return changed(WholeLaplace, "noised", lambda real: noised)


def laplace_from_a_seed() -> AbstractContextManager[None]:
    """The same noise for everybody, always."""

    def make(real: Callable[..., Integers]) -> Callable[..., Integers]:
        def drawn(scale: int, *, size: int, stream: Stream) -> Integers:
            return real(scale, size=size, stream=SeededRandomness(seed=0).stream("noise"))

        return drawn

    return changed(whole_noise, "discrete_laplace", make)


def bounded_by(times: float) -> Breakage:
    """A gradient that is bounded at several times the bound."""

    def make(real: Callable[..., Integers]) -> Callable[..., Integers]:
        def bounded(self: WholeLaplace, gradient: Floats) -> Integers:
            return real(replace(self, bound=int(self.bound * times)), gradient)

        return bounded

    return lambda: changed(WholeLaplace, "bounded", make)


def noise_for_one_coordinate() -> AbstractContextManager[None]:
    """All numbers together are promised, and the noise is that of one of them."""

    def make(real: Any) -> Any:
        def fitting(cls: type[WholeLaplace], *, distances: int, **given: Any) -> WholeLaplace:
            fitted: WholeLaplace = real.__func__(cls, distances=1, **given)
            return fitted

        return classmethod(fitting)  # type: ignore[arg-type]  # the class comes by position

    return changed(WholeLaplace, "fitting", make)


def repeats_unpaid() -> AbstractContextManager[None]:
    """A column that is told several times is paid once."""
    return changed(Mechanism, "_charged", lambda real: lambda self, unit: self._sensitivity(self.privacy))


RECORDS: dict[str, tuple[Breakage, str]] = {
    "noise of a silo halved": (noise_is(0.5), "noise of the steps"),
    "noise of a silo a tenth short": (noise_is(0.9), "noise of the steps"),
    "noise in the first step alone": (noise_of_the_first_step_alone, "noise of the steps"),
    "the noise of one step for all": (noise_of_one_step_for_all, "noise of two steps"),
    "gradients not clipped": (clip_off, "rounds of ward"),
    "gradients clipped at twice the bound": (clip_twice, "longest gradient"),
    "gradients clipped by their batch": (clip_of_the_batch, "noise of the steps"),
    "divided by the batch": (divided_by_the_batch, "divisor of a step"),
    "a shuffle priced as Poisson": (batches_of_a_shuffle, "spread of the draws"),
    "a ledger that begins anew for each run": (spends_from_nothing_each_run, "may spend together"),
}
"""What is broken about silos, and what sees it."""

SUMS: dict[str, tuple[Breakage, str]] = {
    "noise of the server halved": (noise_is(0.5), "noise of the steps"),
    "noise of the server a tenth short": (noise_is(0.9), "noise of the steps"),
    "gradients not clipped": (clip_off, "rounds of all silos"),
    "gradients clipped at twice the bound": (clip_twice, "longest gradient"),
    "all records in every batch": (batches_of_a_shuffle, "how often a record"),
    "a ledger that begins anew for each run": (spends_from_nothing_each_run, "may spend together"),
}
"""What is broken about sums of records, and what sees it."""

DEVICES: dict[str, tuple[str, Breakage, str]] = {
    "noise of a device halved": ("whole", laplace_is(0.5), "noise of a contribution"),
    "noise of a device a tenth short": ("whole", laplace_is(0.9), "noise of a contribution"),
    "noise of a device in floats": ("whole", laplace_in_floats, "what a contribution is made of"),
    "noise of a device from a seed": ("whole", laplace_from_a_seed, "noise that comes again"),
    "a gradient bounded at twice the bound": ("whole", bounded_by(2.0), "longest gradient"),
    "noise of one coordinate for all": ("numbers", noise_for_one_coordinate, "price of a contribution"),
    "a column that is told several times and paid once": ("feature", repeats_unpaid, "price of a column"),
    "Gaussian noise of a device halved": ("gaussian", noise_is(0.5), "noise of a contribution"),
}
"""What is broken about devices, for which specification, and what sees it."""


def noise_after_rounding() -> AbstractContextManager[None]:
    """A part is rounded to the coarse grid of the sum before its share of the noise is added."""

    def make(real: Callable[..., Whole]) -> Callable[..., Whole]:
        def add(self: NoiseShare, part: Whole, **given: Any) -> Whole:
            return real(self, Whole(steps=part.on(self.shared.step), step=self.shared.step), **given)

        return add

    return changed(NoiseShare, "add", make)


def share_is(factor: float) -> Breakage:
    """A share of another size than the plan's."""
    return lambda: changed(
        SharedNoise, "deviation", lambda real: lambda self, listed: factor * float(real(self, listed))
    )


def mask_of_the_first_round() -> AbstractContextManager[None]:
    """Each pair of parties has one mask for all rounds."""
    kept: dict[tuple[str, str], bytes] = {}

    def make(real: Callable[..., None]) -> Callable[..., None]:
        def mask(self: Member, words: Any, peer: str, key: bytes) -> None:
            real(self, words, peer, kept.setdefault((self.name, peer), key))

        return mask

    return changed(Member, "_mask", make)


def mask_without(*names: str) -> Breakage:
    """Masks, or keys, that do not depend on a part of what they are derived from."""

    def make(real: Callable[..., bytes]) -> Callable[..., bytes]:
        def key(secret: bytes, *about: object) -> bytes:
            return real(secret, about[0]) if about[0] in names else real(secret, *about)

        return key

    return lambda: changed(secure_sum, "_key", make)


LAST = "dogwood"


def _even(name: str) -> bool:
    return ord(name[0]) % 2 == 0


def key_from_nothing(name: str) -> Breakage:
    """Masks follow from public words alone."""

    def make(real: Callable[..., bytes]) -> Callable[..., bytes]:
        return lambda secret, *about: real(bytes(32) if about[0] == name else secret, *about)

    return lambda: changed(secure_sum, "_key", make)


def roster_unbound() -> AbstractContextManager[None]:
    """Parties with other rosters have the same plan."""

    def make(real: Any) -> Any:
        return property(lambda self: digest(forms.to_json(self.plan), self.size, self.label))

    return changed(SumPlan, "name", make)


def keys_that_stay() -> AbstractContextManager[None]:
    """The keys of a pair are the same in every round."""
    return changed(secure_sum, "_moved", lambda real: lambda key, since, number: key)


def masks_of(change: Callable[[Member, str], bool]) -> Breakage:
    """Masks between some pairs of parties are left out."""

    def make(real: Callable[..., None]) -> Callable[..., None]:
        def mask(self: Member, words: Any, peer: str, key: bytes) -> None:
            if change(self, peer):
                real(self, words, peer, key)

        return mask

    return lambda: changed(Member, "_mask", make)


def stream_of(change: Callable[[Any], None]) -> Breakage:
    """A mask whose numbers are not all fresh."""

    def make(real: Callable[..., Any]) -> Callable[..., Any]:
        def stream(key: bytes, words: Any) -> Any:
            drawn = real(key, words).copy()
            change(drawn)
            return drawn

        return stream

    return lambda: changed(secure_sum, "_stream", make)


def _tail_of_zeros(mask: Any) -> None:
    mask[-len(mask) // 5 :] = 0


def _two_halves(mask: Any) -> None:
    mask[len(mask) // 2 :] = mask[: len(mask) // 2]


def _low_bytes_of_zeros(mask: Any) -> None:
    mask &= 0xFF00


def noise_of_the_number() -> AbstractContextManager[None]:
    """In earnest a share's noise follows from the number of its round."""

    def make(real: Callable[..., Any]) -> Callable[..., Any]:
        def share(self: ShareRun, number: int, asked: NoiseShare) -> Any:
            kept = self.randomness
            self.randomness = kept if kept.simulated else SeededRandomness(seed=number)
            try:
                return real(self, number, asked)
            finally:
                self.randomness = kept

        return share

    return changed(ShareRun, "share", make)


def short_for_some_lists() -> AbstractContextManager[None]:
    """A share is too small unless the list is the shortest or the longest."""

    def make(real: Callable[..., float]) -> Callable[..., float]:
        def deviation(self: SharedNoise, listed: int) -> float:
            short = self.colluders + 1 < listed < self.parties
            return (0.01 if short else 1.0) * real(self, listed)

        return deviation

    return changed(SharedNoise, "deviation", make)


def secrets_that_stay() -> AbstractContextManager[None]:
    """What a party overwrites stays in the free pages of its file."""

    def make(real: Callable[..., Any]) -> Callable[..., Any]:
        def state(self: Member) -> Any:
            kept = real(self)

            @contextmanager
            def opened() -> Iterator[Any]:
                with kept as connection:
                    connection.execute("PRAGMA secure_delete = OFF")
                    yield connection

            return opened()

        return state

    return changed(Member, "_state", make)


def one_random_number() -> AbstractContextManager[None]:
    """A party announces the same random number in every life."""
    return changed(secrets, "token_hex", lambda real: lambda size: "0" * 2 * size)


SHARES: dict[str, tuple[Breakage, str]] = {
    "noise after rounding": (noise_after_rounding, "what rounding makes"),
    "share too small by 2 %": (share_is(0.98), "noise of a share"),
    "mask used again": (mask_of_the_first_round, "masks of two rounds"),
    "list not bound": (mask_without("mask"), "masks of two lists"),
    "roster not bound": (roster_unbound, "parties with two rosters"),
    "ratchet not advanced": (keys_that_stay, "keys of a round"),
    "masks without a secret": (key_from_nothing("mask"), "masks without the secrets"),
    "the last party unmasked": (masks_of(lambda me, peer: LAST not in (me.name, peer)), "words of parties"),
    "masks that cancel in pairs": (masks_of(lambda me, peer: _even(me.name) == _even(peer)), "words of parties"),
    "a mask that ends early": (stream_of(_tail_of_zeros), "words of parties"),
    "a mask twice in an answer": (stream_of(_two_halves), "words of parties"),
    "a mask for high bytes alone": (stream_of(_low_bytes_of_zeros), "words of parties"),
    "noise of the round's number": (noise_of_the_number, "shares of two draws"),
    "too little noise for some lists": (short_for_some_lists, "noise of a share"),
    "secrets that stay on disk": (secrets_that_stay, "keys of a round"),
    "one random number for ever": (one_random_number, "a list that comes to a copy"),
}
"""What is broken about noise in shares and masked sums, and what sees it."""
