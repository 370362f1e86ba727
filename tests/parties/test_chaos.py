"""A federation in a network at its worst: server and parties are killed at any moment, and go on from their disks.

What has to hold whatever happens: a party's ledger has each round once, the server's has each round once, an answer
counts at most once and is the same whenever it is given, and the model stays finite.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from incrowd._random import Floats, Integers, SystemRandomness
from incrowd.errors import BudgetExceeded, DataError, RoundUnanswered, SpecificationRefused
from incrowd.parties.asking import Patience
from incrowd.parties.contribution import RoundTask
from incrowd.parties.frames import ASKED, AskedBefore, Expected, Place, decoded, read_answer
from incrowd.parties.guard import MEMORY
from incrowd.parties.network import Network
from incrowd.parties.participant import Participant
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.privacy.mechanism.clipped_sum import Part
from incrowd.privacy.mechanism.clipping import Clip
from incrowd.privacy.release import PrivateRun
from tests.parties.nodes import VirtualClock, WildLine
from tests.parties.parties import CLIP, KEYS, MODEL, NAMES, SERVER, Made, network_of, offer_for, plan_of, zeros
from tests.parties.test_participant import charged


class Killed(BaseException):
    """The server's process ends here."""


@dataclass
class MortalLine(WildLine):
    """The same network, in which the server is killed while it waits, too."""

    def pull(self, asked: list[str], longest: int) -> Iterator[tuple[str, bytes]]:
        """See `Line.pull`."""
        if self.happens("server killed while it waits", 0.003):
            raise Killed
        yield from super().pull(asked, longest)


@dataclass(frozen=True, kw_only=True, eq=False)
class Watched(Network):
    """A network whose sums are remembered, by their round."""

    sums: list[tuple[int, Integers]] = field(default_factory=list)

    def part(self, weights: Floats, clients: Sequence[int], *, round: int, clip: Clip) -> Part:
        """See `Network.part`."""
        found = super().part(weights, clients, round=round, clip=clip)
        self.sums.append((round, found.total.steps.copy()))
        return found


class Storm:
    """Three parties and a server, each in a folder."""

    def __init__(self, folder: Path, *, rounds: int, seed: int, forgetful: bool = False) -> None:
        self.folder, self.rounds, self.forgetful = folder, rounds, forgetful
        self.generator, self.clock = np.random.default_rng(seed), VirtualClock()
        self.plan = plan_of(rounds, noise=4.0)
        self.offer = offer_for(self.plan)
        self.task = RoundTask.stated(self.offer, 0, CLIP)
        self.made = [Made(folder / name, name, rest={"randomness": SystemRandomness()}) for name in NAMES]
        self.parties: list[Participant] = [each.start() for each in self.made]
        for party in self.parties:
            party.answer(self.offer.to_bytes(SERVER))
        nodes = {node: lambda frame, node=node: self.answer(node, frame) for node in range(len(NAMES))}
        self.line = MortalLine(nodes, self.clock, self.generator, die=self.die)
        self.given: dict[tuple[int, int], Integers] = {}
        self.sums: list[tuple[int, Integers]] = []
        self.lives = 0

    def answer(self, node: int, frame: bytes) -> bytes:
        """What a party answers: the same in a round, whenever it does."""
        try:
            found = self.parties[node].answer(frame)
        except (DataError, SpecificationRefused, BudgetExceeded):
            return b"nothing"
        name, number = NAMES[node], self.asking
        place = Place(plan=self.offer.fingerprint, round=number, party=name)
        steps = self.read(found, place)
        assert np.array_equal(self.given.setdefault((node, number), steps), steps)
        return found

    def read(self, frame: bytes, place: Place) -> Integers:
        expected: Expected = self.task.expected(place, contributions=1)
        signed = read_answer(frame, expected=expected, key=KEYS[place.party].public_key())
        return decoded(signed, expected=expected).steps

    def die(self, node: int) -> None:
        """A party is killed, and starts again."""
        self.parties[node].close()
        if self.forgetful:
            (self.made[node].folder / MEMORY).unlink()
        self.parties[node] = self.made[node].start()
        if self.forgetful:
            self.parties[node].answer(self.offer.to_bytes(SERVER))

    @property
    def asking(self) -> int:
        """The round that the server asks for."""
        return self._number

    def train(self) -> None:
        """The server's lives, one after another."""
        while True:
            self.lives += 1
            try:
                self._live()
                return
            except (Killed, RoundUnanswered):  # which its operator starts again
                continue

    def _live(self) -> None:
        """One life: everything is read from the server's folder."""
        plan, place = self.plan, self.folder / "weights.npy"
        patience = Patience(timeout=4, again=1, poll=0.1, clock=self.clock)
        plain = network_of(self.line, self.offer, patience=patience)
        history = AskedBefore(self.folder / ASKED, plan=self.offer.fingerprint)
        network = Watched(**{**vars(plain), "history": history}, sums=self.sums)
        book = self.folder / "server.sqlite"
        with Ledger.open(book, budget=plan.budget, relation=plan.relation, data_identity="all") as ledger:
            weights = np.load(place) if place.exists() else zeros()
            while True:
                run = PrivateRun(plan, ledger=ledger, randomness=SystemRandomness(), size=MODEL.size)
                if run.next_round == self.rounds:
                    return
                self._number = run.next_round
                self._come_and_go()
                opened = run.round(run.next_round)
                opened.ask(network.trainer(weights))
                self._perhaps("server killed before it releases", 0.02)
                weights = weights + opened.release().mean
                self._perhaps("server killed before it saves", 0.02)
                np.save(place, weights)
                assert np.isfinite(weights).all()

    def _come_and_go(self) -> None:
        for node in range(len(NAMES)):
            if self.line.happens("comes or goes", 0.03):
                self.line.away ^= {node}

    def _perhaps(self, what: str, probability: float) -> None:
        if self.line.happens(what, probability):
            raise Killed

    def check(self) -> None:
        """What has to hold."""
        with Ledger.read(self.folder / "server.sqlite") as ledger:
            assert ledger.charges() == (self.rounds, 0)
            assert ledger.spent().epsilon == pytest.approx(self.plan.price.epsilon, rel=1e-9)
        for node, (each, party) in enumerate(zip(self.made, self.parties, strict=True)):
            party.close()
            last = max(number for owner, number in self.given if owner == node)
            rounds = charged(each.folder)
            assert rounds == list(range(len(rounds)))
            assert len(rounds) > last
            assert verify(each.folder / "ledger.sqlite")["intact"]
        for number, total in self.sums:
            answers = [self.given[node, number] for node in range(len(NAMES)) if (node, number) in self.given]
            sums = [sum(some, np.zeros_like(total)) for some in _subsets(answers)]
            once = any(np.array_equal(total, each) for each in sums)
            assert once, f"the sum of round {number} is none of answers that each count once"


def _subsets(answers: list[Integers]) -> Iterator[tuple[Integers, ...]]:
    for count in range(len(answers) + 1):
        yield from combinations(answers, count)


@pytest.mark.slow
def test_whatever_is_killed_ledgers_are_exact_and_answers_count_once(tmp_path: Path) -> None:
    storm = Storm(tmp_path, rounds=25, seed=1)
    storm.train()
    storm.check()
    assert storm.line.happened["replayed"] > 3
    assert any(total.any() for _, total in storm.sums)


@pytest.mark.slow
def test_a_party_that_loses_its_memory_gives_nothing_twice(tmp_path: Path) -> None:
    """Its ledger knows what was paid for, and a round that was is not answered anew."""
    storm = Storm(tmp_path, rounds=60, seed=3, forgetful=True)
    storm.train()
    storm.check()


def test_a_sum_that_counts_an_answer_twice_is_found_out(tmp_path: Path) -> None:
    """The control of the other check."""
    storm = Storm(tmp_path, rounds=5, seed=4)
    storm.train()
    storm.check()
    number, total = next((number, total) for number, total in storm.sums if total.any())
    node = next(node for node, given in storm.given if given == number)
    storm.sums.append((number, total + storm.given[node, number]))
    with pytest.raises(AssertionError, match="none of answers"):
        storm.check()
