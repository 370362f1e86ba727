"""The one way from private contributions to a released number: clip -> whole steps -> sum -> charge -> noise.

A `PrivateRound` holds the running sum and does not show it. It gives one `Release`, and only against the
receipt for the round's event, which the ledger has put on disk.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from incrowd import _validate
from incrowd._random import Floats, Integers, KeyedStream, Randomness, Stream
from incrowd.errors import BudgetExceeded, ConfigError, DataError
from incrowd.privacy.ledger.ledger import Ledger, cohort_key, forget_cohorts
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.clipped_sum import ClientNumbers, ClippedSum, CohortContributions, Elsewhere, Observed
from incrowd.privacy.mechanism.clipping import Clip, MedianClip, QuantileClip, ScalingClip
from incrowd.privacy.mechanism.correlated import NoiseState
from incrowd.privacy.mechanism.grid import GaussianNoise, Whole, check_sum
from incrowd.privacy.mechanism.shared import NoiseShare
from incrowd.privacy.paid import PaidRun, RoundNoise
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.sampling import Cyclic, Everyone, Sampler
from incrowd.privacy.statement import Statement


class Trainer(Protocol):
    """A way to train numbered clients: the engine on this machine, a network, a secure sum, canaries."""

    def cohort(self, clients: ClientNumbers, *, round: int) -> CohortContributions | Elsewhere:
        """The contributions of these clients to a round, or their sum where it is made elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Carry:
    """The state between rounds: the clip, which is public, and the memory of correlated noise, which is private."""

    clip: Clip | MedianClip
    noise: NoiseState | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Release:
    """The numbers that leave the server after one round, all of them public but for `observed`.

    `total` is the noised sum in whole steps of a public grid, `clip` what clips the next round. `observed` is
    simulation only: it is None unless the randomness was seeded.
    """

    round: int
    total: Whole = field(compare=False)
    cohort: float
    clip_norm: float
    noise_std: float
    clip: Clip | MedianClip
    observed: Observed | None

    @cached_property
    def mean(self) -> Floats:
        """The noised sum over the expected cohort, a public number."""
        return self.total.values / self.cohort


class PrivateRun(PaidRun):
    """All rounds of one plan, over contributions of one size.

    Contributions come with their clients' numbers, so that each client of a round's cohort counts once and no other
    does. `places` are the public places of numbered clients, from which their turns follow
    (`incrowd.privacy.plan.sampling.Cyclic`); without them a client's number is its place.

    Guarantee: a round can be released once, in the plan's order, with the sampler, noise and denominator that the plan
    priced. A ledger without room for the plan refuses here, before anything is trained or spent.
    """

    takes = frozenset(
        {("client", "server"), ("client", "party"), ("client", "parties"), ("record", "server"), ("record", "parties")}
    )

    def __init__(
        self,
        plan: Plan,
        *,
        ledger: Ledger,
        randomness: Randomness,
        size: int,
        label: str = "run",
        places: Integers | None = None,
    ) -> None:
        _validate.count(size=size)
        super().__init__(plan, ledger=ledger, randomness=randomness, label=label)
        self.size = size
        self.places = places
        self._clip = plan.config.clip
        self._cohorts: dict[int, NDArray[np.int64]] = {}
        self.reserve()

    @property
    def next_round(self) -> int:
        """The first round that has not been charged yet."""
        return self.ledger.reservation(self.label).charged

    def start(self) -> Carry:
        """The carry of the first round."""
        correlated = self.plan.correlated
        return Carry(clip=self._clip, noise=None if correlated is None else correlated.init(self.size))

    def cohort(self, number: int) -> NDArray[np.int64]:
        """The clients of a round. Private: only they are told.

        Guarantee: a cohort is drawn once, also when other rounds are asked for in between, and noted before any client
        is told. A second request under this label, here or in another process, gets the same cohort until the round is
        charged: redrawing it would exceed the probability that is priced.
        """
        clients = self._cohorts.get(number)
        if clients is None:
            clients = self._cohorts.setdefault(number, self._drawn(number, self.plan.round(number).sampler))
        return clients.copy()

    def _drawn(self, number: int, sampler: Sampler) -> Integers:
        if isinstance(sampler, Cyclic) and self.places is not None:
            return sampler.among(self.places, round=number)
        if self.randomness.simulated or isinstance(sampler, Cyclic | Everyone):
            return sampler.sample(self.randomness.stream("sampling", number), round=number)
        key = cohort_key(self.ledger, self.label, number)
        return sampler.sample(KeyedStream(key), round=number)

    def batches(self, number: int, silo: int) -> Stream:
        """The random bits by which a silo draws its batch of records for a round. Private.

        Guarantee: until the round is charged, a silo that is asked again draws the same batch; see `cohort`.
        """
        if self.randomness.simulated:
            return self.randomness.stream("batches", number, silo)
        key = cohort_key(self.ledger, self.label, number)
        return KeyedStream(hashlib.sha256(key + silo.to_bytes(8)).digest())

    def check_clients(self, *, clients: int, declared: bool) -> None:
        """Refuse a plan for another public number of clients, and turns by the numbers of clients of whom some may be
        absent, as those of a `declared` number may: each absence would move the turns of others.
        """
        sampler = self.plan.round(0).sampler
        if sampler.clients != clients:  # the probability of taking part would be another than the plan was priced for
            remedy = f"that is what the plan is for, and the federation has {clients}: plan for {clients}"
            raise ConfigError(field="clients", value=sampler.clients, remedy=remedy)
        if declared and self.plan.noise_by == "parties":
            remedy = "parties are listed one by one, so some may not be missing: name them, or give their exact number"
            raise ConfigError(field="clients", value=clients, remedy=remedy)
        if declared and self.places is None and isinstance(sampler, Cyclic):
            remedy = "clients take turns, and some may be absent: name them, so that each has a place of its own"
            raise ConfigError(field="places", value=None, remedy=remedy)

    def round(self, number: int, *, carry: Carry | None = None) -> "PrivateRound":
        """An empty sum for one round; `carry` is that of the round before it, once released.

        A later round needs a carry where something is carried: the bound of an adaptive clip, or correlated noise.
        """
        self.plan.round(number)
        if carry is None:
            carry = self.start()
            if number > 0 and (carry.noise is not None or isinstance(carry.clip, QuantileClip)):
                remedy = "what it hands on changes from round to round: give the carry of the round before it"
                raise ConfigError(field="carry", value=None, remedy=remedy)
        self.check_carry(carry)
        return PrivateRound(self, number, carry=carry)

    def check_carry(self, carry: Carry) -> None:
        """Refuse a clip that is not the plan's, which alone is priced and stated; only a quantile's bound moves."""
        clip = carry.clip
        if isinstance(clip, QuantileClip) and isinstance(self._clip, QuantileClip):
            clip = replace(clip, clip_norm=self._clip.clip_norm)
        if type(clip) is not type(self._clip) or clip != self._clip:
            remedy = f"the plan's is {self._clip}: hand on what the round before it gave"
            raise ConfigError(field="carry", value=carry.clip, remedy=remedy)

    def charge(self, number: int, clip: Clip, *, listed: int = 0) -> Receipt:
        """Pay for a round in which this clip was used: the receipt for its noises, in shares of `listed` parties."""
        said, charged = self.plan.round(number), self.next_round
        if number < charged == self.plan.rounds and not self.randomness.simulated:
            raise BudgetExceeded(f"all {charged} rounds of the plan are charged: make a new plan, if there is room")
        if number > charged or (number < charged and not self.randomness.simulated):
            why = "it is paid for already, and fresh noise would cost again" if number < charged else "not its turn yet"
            remedy = f"{why}: the next round that the plan can pay for is {charged}"
            raise ConfigError(field="round", value=number, remedy=remedy)
        noise = RoundNoise.of(self.plan, number, clip, listed=listed)
        noise.check(self.size)
        self.check_plan()
        note: dict[str, str | int | bool] = {
            "round": number,
            "plan": self.fingerprint,
            "private": clip.private and self._clip.private,
        }
        people = noise.clients if noise.local else max(1, listed)
        receipt = self.pay(said.event, noise.draws, number=number, note=note, people=people)
        for over in [each for each in self._cohorts if each < number]:  # the round itself may be tried again
            del self._cohorts[over]
        if not self.randomness.simulated and not isinstance(said.sampler, Cyclic | Everyone):
            forget_cohorts(self.ledger, self.label, upto=number)
        return receipt

    def statement(self) -> Statement:
        """The promise of all that was charged to the ledger, by this run and others."""
        return self.plan.statement(self.ledger, own=self.next_round)


class PrivateRound:
    """One round's sum, on its way to being released.

    Guarantee: only clients of the round's cohort enter, each once; the denominator is the plan's expected cohort and
    the noise is that of the bound that clipped, however many contributions came in; the event is on disk before any
    noise is drawn: before the release, and where noise is local before the first contribution enters with its own.
    After a release the sum is gone. After a failed charge the round is as it was, and may be released again. After the
    last round nothing is remembered of its noise.
    """

    def __init__(self, run: PrivateRun, number: int, *, carry: Carry) -> None:
        said = run.plan.round(number)
        self._run = run
        self._number = number
        self._carry = carry
        self._after: Carry | None = None
        self._clients = said.sampler.clients
        self._expected = said.sampler.expected_cohort
        self._waiting: set[int] | None = None
        self._silos: dict[int, int] = {}  # the declared records of those whose sums are in
        self._receipt: Receipt | None = None
        self._sum = ClippedSum(run.size, carry.clip, contributions_bound=self._clients)
        fixed, self._listed = None if isinstance(carry.clip, MedianClip) else carry.clip, 0
        self._local = None if fixed is None else run.plan.party_noise(number, fixed)
        self._shared = None if fixed is None else run.plan.shared(number, fixed)

    @property
    def after(self) -> Carry:
        """The carry for the next round, after the release: private, if noise is correlated."""
        if self._after is None:
            raise ConfigError(field="round", value=self._number, remedy="release it first: then there is a carry")
        return self._after

    def listing(self, parties: int) -> None:
        """Say how many parties are listed, each of whom adds a share of the noise, before any part comes."""
        if self._shared is None or self._listed:
            remedy = "a round has one list, of a plan whose noise is shared by parties"
            raise ConfigError(field="listed", value=parties, remedy=remedy)
        self._listed = self._shared.share(parties).listed

    def add(self, rows: NDArray[Any], *, clients: ClientNumbers) -> None:
        """Take contributions in, one vector or one a row, with their clients' numbers."""
        rows, clip = np.atleast_2d(rows), self._sum.clip
        self._sum.check_fits(rows)
        noise = self._own_noise
        if noise is None or isinstance(clip, MedianClip):
            self._admit(clients, contributions=len(rows))
            self._sum.add(rows)
            return
        receipt = self._paid(clip)
        self._admit(clients, contributions=len(rows))
        for row, client in zip(rows, clients, strict=True):
            at = "noise", self._number, int(client)
            self._sum.add_noised(clip, row, partial(noise.add, receipt=receipt, at=at, contributions_bound=1))

    def add_cohort(self, cohort: CohortContributions | Elsewhere) -> None:
        """Take a whole cohort in from a batched engine, which may clip and add up where its arrays live, or from
        elsewhere.

        Guarantee: all clients that were asked count as contributors to a sum from elsewhere. If they add noise, the
        round is charged before they are asked.
        """
        clip = self._sum.clip
        if isinstance(cohort, Elsewhere):
            self._add_elsewhere(cohort, clip)
            return
        if self._own_noise is None and isinstance(clip, ScalingClip):
            self._sum.check_open()
            self._admit(cohort.clients, contributions=len(cohort.clients))
            self._sum.add_summed(clip, cohort)
            return
        for chunk in cohort.chunks():
            self.add(chunk.rows(), clients=chunk.clients)

    def batches(self, silo: int) -> Stream:
        """See `PrivateRun.batches`."""
        return self._run.batches(self._number, silo)

    def add_records(self, part: Whole, *, silo: int, records: int) -> None:
        """Add the clipped sum of one silo's batch (`RecordTraining.whole`); it declared so many records.

        Guarantee: a silo adds one sum, which is no longer than its records can make it; all silos together have at most
        the plan's records. Any other sum is refused, and the round is as it was.
        """
        training = self._run.plan.training(self._run.size)
        self._sum.check_open()
        size = check_sum(part, bound=training.sensitivity, contributions_bound=records)
        if (size, part.step) != (self._run.size, training.grid_step(self._run.size)):
            raise DataError(f"a sum of {size} numbers in steps of {part.step:g} does not fit the plan's grid")
        if silo in self._silos or sum(self._silos.values()) + records > self._clients:
            raise DataError("a silo's second sum, or more records than the plan has: each silo adds one sum a round")
        clip, share = self._sum.clip, self._own_noise
        if share is not None and not isinstance(clip, MedianClip):
            at = "noise", self._number, silo
            part = share.add(part, receipt=self._paid(clip), at=at, contributions_bound=records)
        self._sum.add_whole(part)
        self._silos[silo] = records

    def add_shared(self, listed: int, collect: Callable[[], Whole]) -> None:
        """Add a sum over records with the noise of so many listed silos, charged before `collect` asks for it."""
        self.listing(listed)
        clip, shared = self._sum.clip, self._shared
        assert shared is not None  # noqa: S101 - a plan that is listed shares its noise
        assert not isinstance(clip, MedianClip)  # noqa: S101 - and has no median
        self._paid(clip)
        self._sum.check_open()
        part = collect()
        if (part.steps.shape, part.step) != ((self._run.size,), shared.step):
            raise DataError(
                f"a sum of {part.steps.size} numbers in steps of {part.step:g} does not fit the plan's grid"
            )
        self._sum.add_whole(part)
        self._silos = dict.fromkeys(range(listed), 0)

    def _add_elsewhere(self, cohort: Elsewhere, clip: Clip | MedianClip) -> None:
        if isinstance(clip, MedianClip):
            remedy = "the norms of a cohort are not known where it is added up elsewhere: use another clip"
            raise ConfigError(field="clip", value=type(clip).__name__, remedy=remedy)
        noised = self._own_noise is not None
        if noised:
            self._paid(clip)
        self._sum.check_open()
        self._admit(cohort.clients, contributions=len(cohort.clients))
        self._sum.add_part(clip, cohort, noised=noised)

    def ask(self, trainer: Trainer, *, present: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None) -> None:
        """Have the round's cohort trained; `present` says who of it answers, where not all do."""
        cohort = self._run.cohort(self._number)
        there = cohort if present is None else present(cohort)
        found = trainer.cohort(there, round=self._number)
        if self._shared is not None:
            self.listing(len(found.clients))
        self.add_cohort(found)

    def release(self) -> Release:
        """Charge the round, add its noise and give the mean away."""
        run, number = self._run, self._number
        self._sum.check_open()
        if self._shared is not None and (len(self._silos) or self._sum.observed.contributions) != self._listed:
            raise DataError(f"{self._listed} parties are listed, and not all sent their part: the round is lost")
        clip = self._sum.settle()
        receipt = self._paid(clip)
        noise = RoundNoise.of(run.plan, number, clip, listed=self._listed)
        total, std, memory = noise.added(self._sum.close(), receipt=receipt, memory=self._carry.noise)
        kept = memory if number + 1 < run.plan.rounds else None  # a secret that nothing needs is not kept
        self._after = Carry(clip=self._next_clip(noise, receipt), noise=kept)
        return Release(
            round=number,
            total=total,
            cohort=self._expected,
            clip_norm=clip.clip_norm,
            noise_std=std,
            clip=self._after.clip,
            observed=self._sum.observed if run.randomness.simulated else None,
        )

    def _paid(self, clip: Clip) -> Receipt:
        if self._receipt is None:
            self._receipt = self._run.charge(self._number, clip, listed=self._listed)
        return self._receipt

    @property
    def _own_noise(self) -> GaussianNoise | NoiseShare | None:
        """The noise that each contributor adds to its own part; None where the server noises the sum."""
        return self._local if self._shared is None else self._shared.share(self._listed)

    def _admit(self, clients: ClientNumbers, *, contributions: int) -> None:
        """Refuse a contribution that is not of the cohort, or not its client's first."""
        if self._run.plan.unit == "record":
            raise ConfigError(field="unit", value="record", remedy="give sums over records: add_records")
        numbers = [int(client) for client in clients]
        if len(numbers) != contributions:
            raise DataError(f"{contributions} contributions, and {len(numbers)} clients: give each its own")
        if self._waiting is None:
            self._waiting = set(self._run.cohort(self._number).tolist())
        if len(set(numbers)) != len(numbers) or not self._waiting.issuperset(numbers):
            raise DataError(
                "a contribution of a client that this round did not ask, or that has contributed already: each client "
                "of a round's cohort contributes once"
            )
        self._waiting -= set(numbers)

    def _next_clip(self, noise: RoundNoise, receipt: Receipt) -> Clip | MedianClip:
        """The next round's clip; a quantile moves by the released fraction of contributions that were not clipped."""
        clip, bits = noise.clip, noise.bits
        if not isinstance(clip, QuantileClip) or bits is None:
            return self._carry.clip
        seen = self._sum.observed
        total = np.array([seen.unclipped - (seen.contributions - seen.dropped) / 2])
        at = "clip bit", self._number
        noised = bits.add(total, receipt=receipt, at=at, contributions_bound=self._clients).values
        return clip.updated(float(noised[0]) / self._expected + 0.5)
