"""A malicious server that forgets, of which there are two, or that nobody answers: it gets nothing new for the price.

A server's ledger is the server's: one that is restarted from nothing, from an old copy, or beside its own copy, has a
ledger that is in order. What parties gave it twice would be paid for once. Their own ledgers are what stands against
it; `tests/parties/test_states.py` plays all such lives against parties that are protected as a whole.
"""

import copy
import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd._random import Floats, SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError, IncrowdError, RoundUnanswered, SpecificationRefused
from incrowd.federation import Federation
from incrowd.flower.serve import PartyServer
from incrowd.parties.asking import UNANSWERED, Attendance, Patience
from incrowd.parties.contribution import Part
from incrowd.parties.frames import AskedBefore, Place, Request, opened
from incrowd.parties.guard import LEDGER, given
from incrowd.parties.offer import Offer
from incrowd.parties.participant import Participant
from incrowd.parties.policy import PartyPolicy
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.sampling import Poisson
from incrowd.privacy.release import PrivateRun
from incrowd.runs.folder import Record, database_in
from tests.command import Command, Finished
from tests.parties import silo_parties
from tests.parties.members import Hospitals, MemberLine, settings_text
from tests.parties.nodes import PlainLine, VirtualClock
from tests.parties.parties import (
    MODEL,
    RANDOMNESS,
    ROOMY,
    SERVER,
    Made,
    asked,
    network_of,
    offer_for,
    past,
    plan_of,
    request,
    zeros,
)
from tests.parties.silo_parties import KEYS, NAMES
from tests.parties.silo_parties import asked as asked_silo
from tests.parties.test_participant import charged
from tests.parties.test_silo_party import answer_of

pytestmark = [pytest.mark.watched, pytest.mark.usefixtures("one_thread")]


# Parties as a whole


def test_a_party_that_refused_everything_has_given_nothing_and_a_lost_ledger_is_no_such_party(made: Made) -> None:
    offer = offer_for(plan_of())
    party = made.start()
    with pytest.raises(SpecificationRefused):
        party.answer(asked(offer, 0))
    assert given(made.folder)["epsilon"] == 0
    party.answer(offer.to_bytes(SERVER))
    party.answer(asked(offer, 0))
    party.close()
    (made.folder / LEDGER).unlink()
    assert not given(made.folder)["intact"]
    for each in made.folder.glob(f"{LEDGER}*"):
        each.unlink()
    with pytest.raises(ConfigError):
        given(made.folder)


def _answers(party: Participant, frame: bytes) -> bool:
    try:
        party.answer(frame)
    except BudgetExceeded:
        return False
    return True


def test_a_day_has_its_limit_also_for_who_is_killed_between_a_question_and_its_price(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server asks on one day, and once more after the party was killed, on a day whose epsilon is spent."""
    today = [date(2026, 3, 1)]
    made.rest["today"] = lambda: today[0]
    made.policy = PartyPolicy(budget=ROOMY, daily_epsilon=5.0)
    first, second = offer_for(plan_of()), offer_for(plan_of(5))
    party = made.start()
    for offer in (first, second):
        party.answer(offer.to_bytes(SERVER))
    monkeypatch.setattr(Part, "_charge", lambda *_: 1 / 0)  # killed
    with pytest.raises(ZeroDivisionError):
        party.answer(asked(first, 0))
    monkeypatch.undo()
    party.close()
    party = made.start()
    answered = next(number for number in range(4) if not _answers(party, asked(second, number)))
    assert answered > 0
    with pytest.raises(BudgetExceeded, match="2026-03-01"):
        party.answer(asked(first, 0))
    assert charged(made.folder) == list(range(answered))
    today[0] = date(2026, 3, 2)
    frame = party.answer(asked(first, 0))
    assert party.answer(asked(first, 0)) == frame


def cloned(offer: Offer, since: int, number: int) -> Request:
    """What the copy of a server asks that goes on by itself from some round: with noise, and so weights, of its own."""
    own = {f"round_{each}": request(offer, each, weights=9.0, history=b"") for each in range(since, number)}
    return request(offer, number, weights=9.0, history=past(offer, number, **own))


@pytest.mark.parametrize("killed", [False, True])
def test_a_clone_that_passes_over_a_round_is_noticed(killed: bool, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never asks what the party was asked by the other one: it goes on with the next round."""
    offer = offer_for(plan_of())
    party = made.start()
    party.answer(offer.to_bytes(SERVER))
    if killed:  # while it trained
        monkeypatch.setattr(Part, "answer", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            party.answer(asked(offer, 2))
        monkeypatch.undo()
        party.close()
        party = made.start()
    else:
        party.answer(asked(offer, 2))
    for since in range(3):
        with pytest.raises(SpecificationRefused, match="up to round 2 the server says it asked something else"):
            party.answer(cloned(offer, since, 3).to_bytes(SERVER))
    for history in (b"", bytes(32)):
        with pytest.raises(IncrowdError, match=r"asked|not as many"):
            party.answer(asked(offer, 3, history=history))
    assert charged(made.folder) == ([] if killed else [0, 1, 2])
    assert any("two of it" in row["why"] for row in given(made.folder)["refused"])
    party.answer(asked(offer, 2))
    party.answer(asked(offer, 3))  # the control: the one that it knows goes on


def test_where_parties_noise_for_themselves_a_server_that_forgot_learns_nothing_new(made: Made) -> None:
    made.rest = {"randomness": SystemRandomness()}
    offer = offer_for(plan_of(noise_by="party"))
    party = made.start()
    party.answer(offer.to_bytes(SERVER))
    first = party.answer(asked(offer, 0))
    party.close()
    party = made.start()
    assert party.answer(asked(offer, 0)) == first
    with pytest.raises(SpecificationRefused, match="another question"):
        party.answer(asked(offer, 0, weights=1.0))
    assert charged(made.folder) == [0]


# Silos: what they send is noised, and so public; a second noise for one price is what there is to gain


class Server:
    """A server that knows nothing of its other lives: it adds up what it hears."""

    def __init__(self, silos: silo_parties.Hospitals, weights: Floats | None = None, *, noise: int = 1) -> None:
        self.silos = silos
        self.history = AskedBefore()
        self.generator = np.random.default_rng(noise)
        self.weights = np.zeros(silos.offer.size) if weights is None else weights

    def clone(self) -> "Server":
        """Another, who knows what this one knows now, and whose noise will be another one."""
        other = Server(self.silos, self.weights.copy(), noise=2)
        other.history = copy.deepcopy(self.history)
        return other

    def round(self, number: int) -> bool:
        """One more round; whether anybody answered."""
        patience = Patience(timeout=0.1, clock=VirtualClock())
        server = self.silos.server(self.silos.line(), patience=patience, history=self.history)
        try:
            answers = server.answers(number, self.weights)
        except RoundUnanswered:  # one that does not look would go on
            return False
        sent = [answer.update for answer in answers if answer.update is not None]
        own_noise = self.generator.normal(size=self.weights.size)  # of a promise to whole silos, say
        self.weights = self.weights + np.mean(sent, axis=0) + own_noise
        return len(sent) == 3


@pytest.fixture(scope="module")
def federation() -> Any:
    return silo_parties.federation_of(seeded=False)


@pytest.fixture
def silos(federation: Any, tmp_path: Path) -> silo_parties.Hospitals:
    found = silo_parties.Hospitals(tmp_path / "parties", federation)
    found.accept()
    return found


LIVES: dict[str, tuple[int, int, list[int], int]] = {
    # rounds when the other begins, rounds of the one, those in which the other gets the same answers, and the next one
    "restarted from nothing": (3, 3, [0], 1),
    "rolled back, or two of it": (1, 3, [1], 2),
    "two of it, one of which passes over a round": (1, 2, [], 2),
}


@pytest.mark.parametrize("life", LIVES)
def test_another_life_of_a_server_of_silos_gets_nothing_new(life: str, silos: silo_parties.Hospitals) -> None:
    """The same question has the same answer, to the byte; another one, of a server that forgot, has none."""
    begins, done, same, refused = LIVES[life]
    one = Server(silos)
    assert all(one.round(number) for number in range(begins))
    other = one.clone() if begins < 3 else Server(silos, noise=2)
    assert all(one.round(number) for number in range(begins, done))
    answers = set(silos.answers)
    assert all(other.round(number) for number in same)
    assert not other.round(refused)
    assert set(silos.answers) == answers
    assert all("two of it" in why or "from an old copy" in why for why in silos.refused)
    assert all(one.round(number) for number in range(done, 3))  # the control: the one that they know goes on
    assert all(silos.charged(place) == [0, 1, 2] for place in range(3))


def test_control_without_a_memory_the_same_round_would_be_noised_twice(federation: Any, tmp_path: Path) -> None:
    """Silos that forget what they were asked give two noises for the same round, each on a ledger that knows of one."""
    updates = []
    for name in ("one", "other"):
        forgetful = silo_parties.Hospitals(tmp_path / name, federation)
        forgetful.accept()
        updates.append(answer_of(forgetful.party(0).answer(asked_silo(forgetful.offer, 0)), forgetful.offer, 0).update)
        assert forgetful.charged(0) == [0]
    assert updates[0] is not None
    assert updates[1] is not None
    assert not np.array_equal(updates[0], updates[1])


def test_a_statement_is_given_to_one_last_question_only(silos: silo_parties.Hospitals) -> None:
    offer, party = silos.offer, silos.party(0)
    party.answer(asked_silo(offer, 0))
    first = party.answer(asked_silo(offer, offer.rounds))
    for weights in (0.5, 1.0, -1.0):
        with pytest.raises(SpecificationRefused, match="another question"):
            party.answer(asked_silo(offer, offer.rounds, weights=weights))
    silos.kill(0)
    assert silos.party(0).answer(asked_silo(offer, offer.rounds)) == first
    assert silos.charged(0) == [0]


def test_an_answer_tells_nothing_exact_and_what_is_asked_for_besides_is_refused(silos: silo_parties.Hospitals) -> None:
    """All that leaves: an update of noised steps, and a statement of what was charged."""
    offer, party = silos.offer, silos.party(0)
    for number, clip in ((0, {"kind": "statement"}), (3, {}), (0, {"clip_norm": 9})):
        where = Place(plan=offer.fingerprint, round=number, party="")
        odd = Request(place=where, weights=np.zeros(offer.size, np.float32), clip=clip)
        with pytest.raises(IncrowdError, match="does not know"):
            party.answer(odd.to_bytes(silo_parties.SERVER))
    assert silos.charged(0) == []
    frame = party.answer(asked_silo(offer, 0))
    found = answer_of(frame, offer, 0)
    assert {name for name, value in vars(found).items() if value is not None} == {"silo", "round", "epsilon", "update"}
    _, _, head, _ = opened(frame, ("silo",), key=KEYS[NAMES[0]].public_key(), most=8 * offer.size)
    assert set(head) == {"epsilon", "absence", "kind", "plan", "round", "party"}
    frame = party.answer(asked_silo(offer, offer.rounds))
    _, _, head, _ = opened(frame, ("statement",), key=KEYS[NAMES[0]].public_key(), most=0)
    assert set(head) == {"statement", "kind", "plan", "round", "party"}


# A server that nobody answers, or that all refuse, goes on to its last round, and releases noise alone


ROUNDS = 6
PRIVACIES = {
    "clients": f"epsilon = 50.0\ndelta = 1e-5\nrounds = {ROUNDS}\n",
    "silos": f'unit = "record"\nepsilon = 40.0\ndelta = 1e-3\nrounds = {ROUNDS}\nrecords = 30\nclip_norm = 1.0\n',
}


class World:
    """A server of three parties, on a machine that can be put back from a copy."""

    def __init__(self, folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch, incrowd: Command) -> None:
        self.hospitals = Hospitals(folder)
        self.line = MemberLine(self.hospitals)
        self.folder, self._incrowd = folder, incrowd
        text = settings_text(here=False, privacy=PRIVACIES[kind])
        (folder / "there.toml").write_text(text.replace('randomness = "seeded"\nseed = 3\n', ""))
        if kind == "silos":
            for name in self.hospitals.names:
                its = {"more": 'unit = "record"\nrecords = 30\n', "allow": "epsilon = 80.0\ndelta = 1e-3\n"}
                self.hospitals.state(name, **its)
        monkeypatch.setattr(PartyServer, "link", lambda *_, **__: nullcontext(self.line))
        brief = PartyServer.__init__
        patience = Patience(timeout=30, again=5, clock=VirtualClock())
        monkeypatch.setattr(PartyServer, "__init__", lambda own, **its: brief(own, **its | {"patience": patience}))

    def serve(self) -> Finished:
        keys, out = str(self.folder / "server"), str(self.folder / "out")
        return self._incrowd("flower", "serve", str(self.folder / "there.toml"), "--keys", keys, "--out", out)

    def rounds(self, number: int) -> None:
        """Train so many rounds, and stop."""

        class Stops:
            def start(self, *_: object) -> None: ...
            def end(self, *_: object) -> None: ...
            def round(self, record: Record) -> None:
                if record.round + 1 == number:
                    raise KeyboardInterrupt

        run = Federation.from_settings(self.folder / "there.toml").run_in(self.folder / "out")
        with pytest.raises(KeyboardInterrupt):
            self.hospitals.server(say=lambda _: None).train_over(self.line, run, [Stops()])

    def done(self) -> int:
        with database_in(self.folder / "out") as database:
            return len(database.rounds())

    def copy(self, *, back: bool) -> None:
        """Put a copy of all that the server knows aside, or back in its place."""
        for folder in (self.folder / "out", Path(os.environ["INCROWD_STATE"])):
            aside = folder.with_name(f"{folder.name}.copy")
            source, target = (aside, folder) if back else (folder, aside)
            shutil.rmtree(target, ignore_errors=True)
            if source.exists():  # a server of silos has no ledger, so no state
                shutil.copytree(source, target)


@pytest.fixture
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, incrowd: Command
) -> Iterator[World]:
    made = World(tmp_path, request.param, monkeypatch, incrowd)
    yield made
    made.line.close()


@pytest.mark.parametrize("world", ["clients"], indirect=True)  # silos answer again: their server adds no noise
def test_a_server_that_was_put_back_from_a_copy_stops_and_spends_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its ledger and the ledger's witness: then only the parties notice, and its operator is told."""
    world.rounds(2)
    world.copy(back=False)
    world.rounds(4)
    world.copy(back=True)
    for _ in range(2):  # however often it is started again
        refused = world.serve()
        assert (refused.status, world.done()) == (1, 3), refused.err  # the third round is asked as it was before
        assert "noise alone is not released" in refused.err
        assert "a party that was asked refuses: another question was asked in round 3" in refused.err
    for name in world.hospitals.names:
        found = given(world.folder / name)
        assert [row["round"] for row in found["events"]] == [0, 1, 2, 3]
        assert {row["round"] for row in found["refused"]} == {3}
    monkeypatch.setattr(Attendance, "check_answered", lambda *_, **__: None)  # the control: who does not look goes on
    assert (world.serve().status, world.done()) == (0, ROUNDS)


@pytest.mark.parametrize("world", PRIVACIES, indirect=True)
def test_a_server_whose_parties_are_there_goes_on_and_one_whose_parties_have_gone_does_not(world: World) -> None:
    world.rounds(2)
    world.line.gone.update(world.hospitals.names)
    assert world.serve().status != 0
    assert world.done() == 2
    world.line.gone.clear()
    assert (world.serve().status, world.done()) == (0, ROUNDS)


def test_of_drawn_parties_so_many_silent_rounds_are_noise_and_no_more() -> None:
    plan = plan_of(rounds=40, sampling=Poisson)
    ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    run = PrivateRun(plan, ledger=ledger, randomness=RANDOMNESS, size=MODEL.size)
    silent = PlainLine({number: lambda _: b"" for number in range(3)})
    network = network_of(silent, offer_for(plan), patience=Patience(timeout=1, clock=VirtualClock()))
    sizes = list[int]()

    def train() -> None:
        for number in range(40):
            sizes.append(run.cohort(number).size)
            opened = run.round(number)
            opened.ask(network.trainer(zeros()))
            assert np.isfinite(opened.release().mean).all()

    with pytest.raises(RoundUnanswered):
        train()
    asked = [size for size in sizes if size]
    assert len(asked) <= UNANSWERED
    assert ledger.charges() == (len(sizes) - 1, 0)
