"""Attack: a server that forgets, or of which there are two, gets a second contribution for one price.

A server's ledger is the server's: one that is restarted from nothing, from an old copy, or beside its own copy, has
a ledger that is in order. What parties gave it twice would be paid for once. Their own ledgers are what stands against
it.
"""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from incrowd._random import Floats, SystemRandomness
from incrowd.errors import DataError, IncrowdError, LedgerMismatch, RoundUnanswered, SpecificationRefused
from incrowd.learning import CohortEngine
from incrowd.parties.asking import Patience
from incrowd.parties.frames import AskedBefore, Place
from incrowd.parties.offer import Offer, RoundTask
from incrowd.parties.participant import Participant
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import Clip, ElementwiseClip, MedianClip, PerLayerClip
from incrowd.privacy.release import PrivateRun
from tests.parties.nodes import PlainLine, VirtualClock
from tests.parties.parties import CLIP, MODEL, NAMES, SERVER, Made, asked, network_of, offer_for, plan_of, zeros
from tests.parties.test_participant import charged

pytestmark = pytest.mark.watched


@dataclass
class Hospitals:
    """Three parties who answer whoever has the server's key."""

    folder: Path
    offer: Offer
    parties: list[Participant] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        rest = {"randomness": SystemRandomness()}
        self.parties = [Made(self.folder / name, name, rest=dict(rest)).start() for name in NAMES]
        for party in self.parties:
            party.answer(self.offer.to_bytes(SERVER))

    def line(self) -> PlainLine:
        def node(number: int) -> Callable[[bytes], bytes]:
            def answer(frame: bytes) -> bytes:
                try:
                    found = self.parties[number].answer(frame)
                except IncrowdError as error:
                    self.refused.append(str(error))
                    return b""
                self.answers.append(found)
                return found

            return answer

        return PlainLine({number: node(number) for number in range(3)})

    def spent(self) -> list[list[int]]:
        return [charged(self.folder / name) for name in NAMES]


@dataclass
class Server:
    """A server with a ledger of its own, which knows nothing of its other lives."""

    hospitals: Hospitals
    ledger: Ledger = field(init=False)
    weights: Floats = field(default_factory=zeros)
    history: AskedBefore = field(default_factory=AskedBefore)

    def __post_init__(self) -> None:
        plan = self.hospitals.offer.plan
        self.ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)

    def round(self) -> None:
        offer = self.hospitals.offer
        run = PrivateRun(offer.plan, ledger=self.ledger, randomness=SystemRandomness(), size=MODEL.size)
        patience = Patience(timeout=1, clock=VirtualClock())
        opened = run.round(run.next_round)
        network = replace(network_of(self.hospitals.line(), offer, patience=patience), history=self.history)
        try:
            opened.ask(network.trainer(self.weights))
        except RoundUnanswered:  # one that does not look would go on
            return
        self.weights = self.weights + opened.release().mean

    def clone(self, rounds: int) -> "Server":
        """Another with the same weights, whose ledger knows so many rounds."""
        other = Server(self.hospitals, weights=self.weights.copy(), history=deepcopy(self.history))
        plan = self.hospitals.offer.plan
        run = PrivateRun(plan, ledger=other.ledger, randomness=SystemRandomness(), size=MODEL.size)
        for number in range(rounds):
            run.charge(number, CLIP)
        return other


@pytest.fixture
def hospitals(tmp_path: Path) -> Hospitals:
    return Hospitals(tmp_path, offer_for(plan_of()))


def test_a_server_that_was_restarted_from_nothing_gets_nothing_new(hospitals: Hospitals) -> None:
    first = Server(hospitals)
    for _ in range(3):
        first.round()
    before = list(hospitals.answers)
    afresh = Server(hospitals)
    for _ in range(3):
        afresh.round()
    assert set(hospitals.answers) == set(before)  # the first round's, which it has had already
    assert len(hospitals.refused) == 6
    assert hospitals.spent() == [[0, 1, 2]] * 3


def test_of_two_servers_one_gets_the_round(hospitals: Hospitals) -> None:
    one = Server(hospitals)
    one.round()
    other = one.clone(1)
    for each in (one, other):
        each.round()  # the same question, so the same answer: two noises on one sum, on the server's account
    before = len(hospitals.answers)
    one.round()
    other.round()
    assert len(hospitals.answers) == before + 3
    assert len(hospitals.refused) == 3
    assert hospitals.spent() == [[0, 1, 2]] * 3


def test_a_server_that_was_rolled_back_gets_nothing_new(hospitals: Hospitals) -> None:
    server = Server(hospitals)
    server.round()
    old = server.clone(1)
    server.round()
    server.round()
    before = set(hospitals.answers)
    old.round()  # the same bytes as then
    old.round()
    assert set(hospitals.answers) == before
    assert len(hospitals.refused) == 3
    assert "restarted from nothing or from an old copy" in hospitals.refused[0]
    assert hospitals.spent() == [[0, 1, 2]] * 3


def test_where_parties_noise_for_themselves_a_server_that_forgot_learns_nothing_new(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path, offer_for(plan_of(noise_by="party")))
    first = Server(hospitals)
    for _ in range(3):
        first.round()
    before = set(hospitals.answers)
    afresh = Server(hospitals)
    for _ in range(3):
        afresh.round()
    assert set(hospitals.answers) == before
    assert afresh.weights.tolist() == first.weights.tolist()
    assert hospitals.spent() == [[0, 1, 2]] * 3


def test_a_replayed_answer_counts_once(hospitals: Hospitals) -> None:
    server = Server(hospitals)
    server.round()
    line = hospitals.line()
    patience = Patience(timeout=1, clock=VirtualClock())
    network = replace(network_of(line, hospitals.offer, patience=patience), history=server.history)
    honest = network.part(server.weights, range(3), round=1, clip=CLIP)
    heard = list(hospitals.answers)

    liar = PlainLine({0: lambda _: heard[3], 1: lambda _: heard[3], 2: lambda _: heard[2]})
    part = replace(network, transport=liar).part(server.weights, range(3), round=1, clip=CLIP)
    assert part.observed.contributions == 1  # north's own; its copies in others' names and another round's are nothing
    assert np.linalg.norm(part.total.values) <= CLIP.clip_norm
    assert np.linalg.norm(honest.total.values) > 0


def test_a_party_whose_numbers_are_not_finite_sends_nothing(tmp_path: Path) -> None:
    made = Made(tmp_path / "north")
    offer = offer_for(plan_of())
    party = made.start()
    party.answer(offer.to_bytes(SERVER))
    engine = party._part(offer).own
    assert isinstance(engine, CohortEngine)
    engine._data.features.fill_(np.nan)
    line = PlainLine({0: party.reply})
    patience = Patience(timeout=1, clock=VirtualClock())
    part = network_of(line, offer, patience=patience).part(zeros(), [0], round=0, clip=CLIP)
    assert not part.total.steps.any()


def test_a_plan_with_less_noise_than_it_says_is_not_accepted(tmp_path: Path) -> None:
    from incrowd.parties.frames import Place as Where
    from incrowd.parties.frames import sealed
    from incrowd.privacy.plan import forms

    form = offer_for(plan_of()).to_json()
    form["plans"][""]["budget"]["epsilon"] = 1.0  # it costs more
    where = Where(plan=forms.fingerprint(form), round=0, party="")
    party = Made(tmp_path / "north").start()
    with pytest.raises((DataError, SpecificationRefused, ValueError), match="epsilon"):
        party.answer(sealed("offer", where, {"offer": form}, b"", key=SERVER))
    assert not (tmp_path / "north" / "ledger.sqlite").exists()


@pytest.mark.parametrize("again", [False, True], ids=["at once", "in another life"])
@pytest.mark.parametrize(("first", "second"), [("party", "server"), ("server", "party")])
def test_a_plan_is_not_charged_at_the_prices_of_another_promise(
    first: str, second: str, again: bool, tmp_path: Path
) -> None:
    made = Made(tmp_path / "north")
    party = made.start()
    party.answer(offer_for(plan_of(noise_by=first)).to_bytes(SERVER))
    if again:
        party.close()
        party = made.start()
    other = offer_for(plan_of(noise_by=second))
    with pytest.raises((SpecificationRefused, LedgerMismatch)):
        party.answer(other.to_bytes(SERVER))
    with pytest.raises(SpecificationRefused, match="not accepted"):
        party.answer(asked(other, 0))
    control = offer_for(plan_of(noise_by=first, rounds=5))
    party.answer(control.to_bytes(SERVER))
    assert party.answer(asked(control, 0))


@pytest.mark.parametrize(
    "clip",
    [
        MedianClip(),
        ElementwiseClip(limit=0.5, size=MODEL.size - 1),
        PerLayerClip(clip_norms=(0.5,), parts=(MODEL.size - 1,)),
        "weights",
    ],
    ids=["median", "elementwise", "layers", "weights"],
)
def test_an_offer_that_can_be_paid_for_and_not_done_costs_nothing(
    clip: Clip | MedianClip | str, tmp_path: Path
) -> None:
    party = Made(tmp_path / "north").start()
    if isinstance(clip, str):
        hostile = Offer.of_plan(plan_of(), size=MODEL.size + 1, columns=("age",), parties=NAMES)
    else:
        hostile = offer_for(plan_of(clip=clip))
    with pytest.raises(SpecificationRefused, match=r"cannot be done|weights"):
        party.answer(hostile.to_bytes(SERVER))
    assert not (tmp_path / "north" / "ledger.sqlite").exists()
    fits = ElementwiseClip(limit=0.5, size=MODEL.size)
    control = offer_for(plan_of(clip=fits))
    party.answer(control.to_bytes(SERVER))
    assert party.answer(asked(control, 0, clip=fits))


@pytest.mark.parametrize("size", [8, 10_000])
def test_a_party_can_send_little_more_than_its_own_noise(size: int) -> None:
    plan = plan_of(noise_by="party")
    offer = Offer.of_plan(plan, size=size, parties=NAMES)
    place = Place(plan=offer.fingerprint, round=0, party="north")
    task = RoundTask.stated(offer, 0, CLIP)
    expected = task.expected(place, contributions=1)
    usual = CLIP.clip_norm * (1 + math.sqrt(size)) / task.step
    noises = np.random.default_rng(0).normal(size=(100, size)) * CLIP.clip_norm / task.step
    control = np.linalg.norm(noises, axis=1).max() + CLIP.clip_norm / task.step
    assert control < expected.largest < usual + 12 * CLIP.clip_norm / task.step + 0.02 * usual
