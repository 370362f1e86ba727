"""Parties and servers in any order of questions, losses, repeats, replays, restarts, clones and rollbacks."""

import copy
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from incrowd._random import SystemRandomness
from incrowd.errors import SpecificationRefused
from incrowd.parties.frames import DIGEST, AskedBefore, Place, Request
from incrowd.parties.guard import given as shown
from incrowd.parties.participant import Participant
from incrowd.privacy.plan import forms
from tests.parties.parties import CLIP, NAMES, SERVER, Made, offer_for, plan_of

KEPT = 10
OFFER = offer_for(plan_of(2000, noise=50.0))
FORM = forms.to_json(forms.RoundForm(plan=OFFER.fingerprint, round=0, clip=CLIP))["clip"]


@dataclass
class Server:
    """A server, which may be one of several: what it asked, and the round that it asks next."""

    name: int
    history: AskedBefore = field(default_factory=lambda: AskedBefore(plan=OFFER.fingerprint))
    next: int = 0

    def question(self) -> Request:
        """Its next question, with weights of its own."""
        weights = np.full(OFFER.size, self.name + self.next / 1000, np.float32)
        place = Place(plan=OFFER.fingerprint, round=self.next, party="")
        return Request(place=place, weights=weights, clip=FORM, history=self.history.before(self.next))

    def go_on(self, asked: Request) -> None:
        self.history.add(self.next, asked.digest)
        self.next += 1


@dataclass
class Model:
    """A party as its promise has it: the questions that it took up, and its answers."""

    asked: dict[int, str] = field(default_factory=dict)
    past: bytes = b""
    answers: dict[int, bytes] = field(default_factory=dict)

    @property
    def last(self) -> int:
        return max(self.asked, default=-1)

    def allows(self, request: Request) -> bool:
        """Whether the party answers: the same as before, or a later round of a server that knows the last one."""
        number, whole = request.place.round, request.history + bytes.fromhex(request.digest)
        if number in self.asked:
            return self.asked[number] == request.digest and number > self.last - KEPT
        return number > self.last and whole[: len(self.past)] == self.past

    def took(self, request: Request, answer: bytes) -> None:
        number = request.place.round
        assert self.answers.setdefault(number, answer) == answer
        if number not in self.asked:
            self.asked[number] = request.digest
            self.past = request.history + bytes.fromhex(request.digest)


class Federation(RuleBasedStateMachine):
    """Three parties, and servers that have one key."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="incrowd-states-")
        self.made = [
            Made(Path(self.folder.name) / name, name, rest={"randomness": SystemRandomness()}) for name in NAMES
        ]
        self.parties: list[Participant] = [each.start() for each in self.made]
        for party in self.parties:
            party.answer(OFFER.to_bytes(SERVER))
        self.models = [Model() for _ in NAMES]
        self.servers, self.sent = [Server(1)], list[Request]()

    @rule(server=st.integers(0, 9), heard=st.sets(st.integers(0, 2)), rounds=st.integers(1, 12))
    def ask(self, server: int, heard: set[int], rounds: int) -> None:
        """A server asks for some rounds; a question may be lost on its way to some."""
        asking = self.servers[server % len(self.servers)]
        for _ in range(rounds):
            question = asking.question()
            for place in heard:
                self.put(place, question)
            self.sent.append(question)
            asking.go_on(question)

    @rule(sent=st.integers(0, 10**6), place=st.integers(0, 2))
    def replay(self, sent: int, place: int) -> None:
        """An old question comes again, late or by an attacker."""
        if self.sent:
            self.put(place, self.sent[-1 - sent % min(len(self.sent), 30)])

    @rule(place=st.integers(0, 2))
    def kill(self, place: int) -> None:
        """A party's process ends, and another begins."""
        self.ledgers_are_exact()
        self.parties[place].close()
        self.parties[place] = self.made[place].start()

    @rule(server=st.integers(0, 9), back=st.integers(0, 5))
    def clone(self, server: int, back: int) -> None:
        """Another server goes on from a copy, which may be some rounds old."""
        old = self.servers[server % len(self.servers)]
        other = Server(len(self.servers) + 1, copy.deepcopy(old.history), max(0, old.next - back))
        other.history._asked = other.history._asked[: DIGEST * other.next]
        self.servers.append(other)

    def put(self, place: int, question: Request) -> None:
        """Ask a party, and compare it with its promise."""
        model, frame = self.models[place], question.to_bytes(SERVER)
        if model.allows(question):
            model.took(question, self.parties[place].answer(frame))
        else:
            with pytest.raises(SpecificationRefused):
                self.parties[place].answer(frame)

    def ledgers_are_exact(self) -> None:
        for place, model in enumerate(self.models):
            charged = [row["round"] for row in shown(self.made[place].folder, begun=False)["events"]]
            assert charged == list(range(model.last + 1))

    def teardown(self) -> None:
        if hasattr(self, "parties"):
            self.ledgers_are_exact()
            for party in self.parties:
                party.close()
            self.folder.cleanup()


TestStates = Federation.TestCase
TestStates.settings = settings(
    max_examples=8, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def test_a_party_that_forgets_the_history_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a guard that takes any history answers a clone that a party was not asked by."""
    monkeypatch.setattr("incrowd.parties.guard.Guard._check_history", lambda *_: None)
    machine = Federation()
    machine.begin()
    machine.ask(0, {0, 1, 2}, 3)
    machine.clone(0, 1)
    machine.ask(1, {1}, 1)
    machine.servers[1].next += 1
    with pytest.raises(pytest.fail.Exception):
        machine.ask(1, {0}, 1)
    for party in machine.parties:
        party.close()
    machine.folder.cleanup()
