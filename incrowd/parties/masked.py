"""A party's masked part of a sum, and the server's questions for it, over any transport.

    keys     server -> party   0: nothing, 1: all hellos, 2: all hellos and sealed secrets; answered in kind
    request  server -> party   the weights of a round, as in every plan; answered with `ready`
    list     server -> party   the ready parties; answered with the masked part

See `incrowd.parties.secure_sum` for the messages of the parties.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from incrowd._random import Floats
from incrowd.errors import ConfigError, DataError, RoundLost, RoundUnanswered, SpecificationRefused
from incrowd.parties.asking import ask
from incrowd.parties.contribution import ClientPart, Contributor, RecordPart, RoundTask
from incrowd.parties.frames import MOST_BESIDE, Place, Request, read_refusal, sealed, unsealed
from incrowd.parties.network import Network, Node
from incrowd.parties.offer import Offer
from incrowd.parties.roster import Roster
from incrowd.parties.secure_sum import Member, SumPlan, SumServer, is_random
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.clipped_sum import ClientNumbers, Observed, Part
from incrowd.privacy.mechanism.clipping import Clip
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.mechanism.shared import NoiseShare
from incrowd.privacy.paid import ShareRun
from incrowd.privacy.plan import forms
from incrowd.privacy.plan.plan import Plan

SUMS = "sums"
"""The subfolder of a party's folder with the keys of its sums."""

_LONGEST_KEYS = MOST_BESIDE  # all parties together
_MOST_LOST = 2
"""The server drops a listed party after so many silent rounds: each such round is lost for all parties."""


class Masked(Contributor):
    """A party that masks its part: it answers a question with `ready`, and a list with the part itself.

    Guarantee: the roster of the offer is the one that the owner has compared. The party computes its part before it
    pays. The charge follows the list, which sets the noise of a share.

    Edge cases: a party that ends between `ready` and its answer is not ready any more.
    """

    keeps = False
    _member: Member | None = None
    _ready: tuple[int, str, Whole, bytes] | None = None

    @property
    def ready(self) -> bool:
        """See `Contributor.ready`."""
        return self._ready is not None

    @property
    def run(self) -> ShareRun:
        """The rounds that the party's own ledger pays."""
        label, randomness = self.offer.fingerprint, self.party.randomness
        run = ShareRun(self.plan, ledger=self.ledger, randomness=randomness, label=label, owner=self.owner)
        run.name_third_party(self.third_party)
        return run

    @property
    def member(self) -> Member:
        """The party's side of the sum, with its keys on disk."""
        if self._member is None:
            identity, label = self.party.identity, self.offer.fingerprint
            self._member = Member(
                self.party.folder / SUMS / label[:32],
                sum_plan(self.plan, self.offer),
                name=identity.name,
                key=identity.key,
                server=identity.server,
                least_colluders=self.party.policy.least_colluders,
            )
        return self._member

    def check_own(self) -> None:
        """See `Contributor.check_own`."""
        super().check_own()
        try:
            offered = Roster.from_json(self.offer.roster)
        except ConfigError as error:
            raise SpecificationRefused(f"an offer whose roster is none: {error}") from error
        if self.party.roster is None or self.party.roster != offered:
            raise SpecificationRefused(
                f"the roster {offered.shown} is not the one that this party has compared (incrowd party compare)"
            )

    def reserve(self) -> None:
        """See `Contributor.reserve`."""
        self.run.reserve()

    def admit(self, request: Request) -> None:
        """Refuse a round that exceeds the day, before any computation."""
        event = self.plan.round(request.place.round).event
        self.party.guard.daily(self.ledger).check([(event, 1)])

    def answer(self, request: Request) -> bytes:
        """Compute the part, and answer `ready`, before any payment."""
        number, digest = request.place.round, request.digest
        if self._ready is None or self._ready[:2] != (number, digest):
            self._ready = number, digest, self.whole(request), self.member.ready(number, digest)
        return self._ready[3]

    def told(self, kind: str, place: Place, frame: bytes) -> bytes:
        """Agree on keys, or pay for the round of a list and send the masked part."""
        member = self.member
        if kind == "list":
            part = None if self._ready is None else self._ready[2]
            answer = member.answer(frame, part, pay=self._pay(place.round))
            if self._ready is not None and self._ready[0] == place.round:
                self._ready = None  # a list of a round before may come again
            return answer
        hellos, hidden = _bundle(member.plan, place.round, frame, key=self.party.identity.server)
        if place.round == 0:
            return member.hello()
        if place.round == 1:
            return member.seal(hellos)
        member.agree(hellos, hidden)
        return member.zeros()

    def whole(self, request: Request) -> Whole:
        """The part, in whole steps of its grid."""
        raise NotImplementedError

    def _pay(self, number: int) -> Callable[[NoiseShare], Receipt]:
        return lambda share: self.run.share(number, share)


class MaskedClient(Masked, ClientPart):
    """A party that is protected as a whole, by noise that all share."""

    def whole(self, request: Request) -> Whole:
        """See `Masked.whole`."""
        task = self._task(request)
        return Whole(steps=self.computed(task, request, None).steps, step=task.step)


class MaskedRecords(Masked, RecordPart):
    """A silo that sends the masked sums of batches of its records."""

    def whole(self, request: Request) -> Whole:
        """See `Masked.whole`."""
        return self.summed(request)


def sum_plan(plan: Plan, offer: Offer) -> SumPlan:
    """The public facts of an offer's sums."""
    return SumPlan(plan=plan, roster=Roster.from_json(offer.roster), size=offer.size, label=offer.fingerprint)


def _bundle(
    plan: SumPlan, stage: int, frame: bytes, *, key: Ed25519PublicKey
) -> tuple[Mapping[str, bytes], Mapping[str, bytes]]:
    """The hellos and the sealed secrets of all parties that a stage has."""
    _, head, body = unsealed(frame, kind="keys", key=key, most=_LONGEST_KEYS)
    sizes, names = head.get("sizes"), plan.roster.names
    whole = isinstance(sizes, list) and all(type(size) is int and size >= 0 for size in sizes)
    if not whole or not isinstance(sizes, list) or stage > 2 or len(sizes) != stage * len(names):
        raise DataError("keys that are not of all parties of the roster")
    if sum(sizes) != len(body):
        raise DataError("keys that are not as long as they say")
    ends = list(accumulate(sizes, initial=0))
    pieces = [bytes(body[start:end]) for start, end in pairwise(ends)]
    return dict(zip(names, pieces, strict=False)), dict(zip(names, pieces[len(names) :], strict=False))


@dataclass(kw_only=True, eq=False)
class SumNetwork:
    """The server's side of an offer whose parties share the noise.

    Guarantee: the server learns a sum of all listed parts with the noise of their shares, or nothing. It charges a
    round before it sends the list.

    Edge cases: all parties of the roster agree on keys before the first round. Too few ready parties for a list end the
    run (`RoundUnanswered`), unpaid. A listed party that stays silent loses the round (`RoundLost`); after two such
    rounds it is listed no more. After two rounds that are lost although all answered, the run ends: a party lies, and
    masks hide which.
    """

    network: Network
    plan: SumPlan = field(init=False)
    server: SumServer = field(init=False)
    _lost: Counter[str] = field(default_factory=Counter, init=False)
    _garbled: int = field(default=0, init=False)
    _agreed: bool = field(default=False, init=False)
    _there: dict[str, Node] = field(default_factory=dict, init=False)
    _list: bytes = field(default=b"", init=False, repr=False)

    def __post_init__(self) -> None:
        self.plan = sum_plan(self.network.offer.plan, self.network.offer)
        self.server = SumServer(self.plan, key=self.network.key)

    def agree(self) -> None:
        """Have all parties agree on keys; a second call before the first round changes nothing.

        Edge cases: a party that is absent, or has other keys than the rest, is a `DataError`.
        """
        names = self.plan.roster.names
        hellos = self._keys(0, {})
        hidden = self._keys(1, hellos)
        self.server.check_zeros(self._keys(2, {**hellos, **{f"sealed {name}": hidden[name] for name in names}}))

    def _keys(self, stage: int, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        names, network = self.plan.roster.names, self.network
        pieces = [frames[name] for name in names] if stage else []
        pieces += [frames[f"sealed {name}"] for name in names] if stage == 2 else []
        place = Place(plan=network.offer.fingerprint, round=stage, party="")
        sizes = {"sizes": [len(piece) for piece in pieces]}
        frame = sealed("keys", place, sizes, b"".join(pieces), key=network.key)
        kind = ("hello", "sealed", "zeros")[stage]
        found = self._told(self._nodes(names), frame, kind, number=0)
        missing = [name for name in names if name not in found]
        if missing:
            raise DataError(f"all parties of the roster have to agree on keys, and these did not: {', '.join(missing)}")
        return found

    def ready(self, number: int, weights: Floats, clip: Clip) -> list[str]:
        """Ask for a round from these weights, and list the ready parties."""
        if not self._agreed and not any(self.network.history.before(number)):
            self.agree()
        self._agreed = True
        if self._garbled >= _MOST_LOST:
            raise RoundUnanswered(
                f"round {number + 1}: {self._garbled} rounds were lost although all listed parties answered, so one of "
                "them sends wrong numbers, and masks hide which: find it, and begin a new run without it"
            )
        network, longest = self.network, 2**13
        told = forms.RoundForm(plan=network.offer.fingerprint, round=number, clip=clip)
        form = forms.to_json(told)["clip"]

        digest = network.question(weights, form, round=number).digest

        def read(node: Node, _: tuple[int, ...], frame: bytes) -> bytes:
            head = self._own(node, frame, "ready", number)
            if head.get("question") != digest or not is_random(head.get("random")):
                raise DataError("a party that is ready for another question, or has no random number")
            return frame

        everybody = range(len(network.offer.parties))
        found = network.ask(everybody, weights, form, round=number, longest=longest, read=read)
        frames = {node.party: frame for node, _, frame in found.values() if frame is not None}
        self._there = {node.party: node for node, _, _ in found.values()}  # no pause comes between charge and list
        ready = {name: frame for name, frame in frames.items() if self._lost[name] < _MOST_LOST}
        if len(ready) <= network.offer.plan.config.sharing[1]:
            raise RoundUnanswered(
                f"round {number + 1}: {len(ready)} parties are ready, and so many may collude: see to the others, and "
                "give the same command again; nothing was charged"
            )
        self._list = self.server.listed(number, ready, question=digest)
        return sorted(ready)

    def total(self, number: int, names: Sequence[str]) -> Whole:
        """The sum of the parts of all listed parties, with the noise of their shares."""
        answers = self._told({name: self._there[name] for name in names}, self._list, "masked", number=number)
        try:
            return self.server.total(number, answers)
        except DataError as error:
            silent = set(names) - set(answers)
            self._lost.update(silent)
            self._garbled += not silent
            raise RoundLost(str(error)) from error

    def records(self, number: int, weights: Floats) -> tuple[int, Callable[[], Whole]]:
        """The number of listed silos in a round, and their sum: see `incrowd.algorithms.silos.AskShared`."""
        clip = RoundTask.stated(self.network.offer, number, self.network.offer.plan.config.clip).clip
        names = self.ready(number, weights, clip)
        return len(names), lambda: self.total(number, names)

    def trainer(self, weights: Floats) -> "SumTrainer":
        """The trainer of a round that starts from these weights: see `incrowd.algorithms.clients.Trainers`."""
        return SumTrainer(self, weights)

    def _nodes(self, names: Sequence[str]) -> dict[str, Node]:
        dealt = self.network.deal(range(len(self.network.offer.parties)))
        return {node.party: node for node in dealt if node.party in names}

    def _own(self, node: Node, frame: bytes, kind: str, number: int) -> Mapping[str, Any]:
        """The head of a frame that this party has signed for this round of the sum, with a body of the right length."""
        length = self.plan.length(kind, node.party)
        place, head, body = unsealed(frame, kind=kind, key=node.key, most=length)
        if place != Place(plan=self.plan.name, round=number, party=node.party) or len(body) != length:
            raise DataError("an answer of another sum, round, party or length than was asked")
        return head

    def _told(self, nodes: Mapping[str, Node], frame: bytes, kind: str, *, number: int) -> dict[str, bytes]:
        """The answers of these parties in time, by name."""
        by_id = {node.id: node for node in nodes.values()}

        def read(number_of: int, reply: bytes) -> bytes:
            node = by_id[number_of]
            if (why := read_refusal(reply, question=frame, key=node.key)) is not None:
                self.network.told(why)
                return b""
            head = self._own(node, reply, kind, number)
            if kind == "hello":
                self.server.check_hello(node.party, reply)
            if kind == "masked" and head.get("list") != self.server.asked(number):
                raise DataError("an answer to another list")
            return reply

        frames, longest = dict.fromkeys(by_id, frame), 4 * self.plan.size + _LONGEST_KEYS
        found = ask(self.network.transport, frames, longest=longest, read=read, patience=self.network.patience)
        return {by_id[place].party: reply for place, reply in found.items() if reply}


@dataclass(frozen=True, eq=False)
class SumTrainer:
    """A network whose clients mask their parts: see `incrowd.privacy.release.Trainer`."""

    network: SumNetwork
    weights: Floats = field(repr=False)

    def cohort(self, clients: ClientNumbers, *, round: int) -> "SumCohort":
        """The ready clients, which are then listed."""
        offer = self.network.network.offer
        clip = RoundTask.stated(offer, round, offer.plan.config.clip).clip
        names = self.network.ready(round, self.weights, clip)
        listed = [client for client in clients if offer.parties[client] in names]
        return SumCohort(network=self.network, names=names, clients=listed, round=round)


@dataclass(frozen=True, kw_only=True, eq=False)
class SumCohort:
    """Listed clients: see `incrowd.privacy.mechanism.clipped_sum.Elsewhere`."""

    network: SumNetwork
    names: Sequence[str]
    clients: Sequence[int] = field(repr=False)
    round: int

    def collected(self, clip: Clip) -> Part:
        """Their sum, with all noise."""
        total = self.network.total(self.round, self.names)
        return Part(total=total, observed=Observed(contributions=len(self.clients), dropped=0, unclipped=0))
