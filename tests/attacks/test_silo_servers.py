"""Attack: a server of silos that forgets, or of which there are two, or that asks for more than was offered.

What a silo sends is noised, and so public; what such a server can gain is a second noise for one price, or an answer
that its records paid for and nobody counted. The silos' own ledgers are what stands against it.
"""

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd._random import Floats
from incrowd.errors import BudgetExceeded, IncrowdError, RoundUnanswered, SpecificationRefused
from incrowd.parties.asking import Patience
from incrowd.parties.contribution import OwnRecords
from incrowd.parties.frames import AskedBefore, Place, Request, unsealed
from incrowd.parties.guard import LEDGER, given
from incrowd.parties.offer import Offer, OfferKind
from incrowd.parties.participant import Participant
from incrowd.parties.policy import PartyPolicy
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.privacy.plan import forms
from incrowd.privacy.plan.plan import Plan
from tests.parties.nodes import PlainLine, VirtualClock
from tests.parties.silo_parties import BUDGET, KEYS, NAMES, SERVER, Hospitals, asked, federation_of
from tests.parties.test_silo_party import calibrated, opened, with_plans

pytestmark = [pytest.mark.watched, pytest.mark.usefixtures("one_thread")]


KINDS: tuple[OfferKind, ...] = ("offer", "trial")


class Server:
    """A server that knows nothing of its other lives: it adds up what it hears."""

    def __init__(self, hospitals: Hospitals, weights: Floats | None = None, *, noise: int = 0) -> None:
        self.hospitals = hospitals
        self.history = AskedBefore()
        self.generator = np.random.default_rng(noise)
        self.weights = np.zeros(hospitals.offer.size) if weights is None else weights

    def clone(self) -> "Server":
        """Another, who knows what this one knows now, and whose noise will be another one."""
        other = Server(self.hospitals, self.weights.copy(), noise=2)
        other.history = copy.deepcopy(self.history)
        return other

    def round(self, number: int) -> list[str | None]:
        """One more round; who was absent."""
        hospitals = self.hospitals
        server = hospitals.server(
            hospitals.line(), patience=Patience(timeout=0.1, clock=VirtualClock()), history=self.history
        )
        try:
            answers = server.answers(number, self.weights)
        except RoundUnanswered:  # one that does not look would go on
            return ["no answer"] * 3
        sent = [answer.update for answer in answers if answer.update is not None]
        own_noise = self.generator.normal(size=self.weights.size)  # of a promise to whole silos, say
        self.weights = self.weights + (np.mean(sent, axis=0) if sent else 0) + own_noise
        return [answer.absence for answer in answers]


@pytest.fixture(scope="module")
def federation() -> Any:
    return federation_of(seeded=False)


@pytest.fixture
def hospitals(federation: Any, tmp_path: Path) -> Hospitals:
    found = Hospitals(tmp_path / "parties", federation)
    found.accept()
    return found


def test_a_server_that_was_restarted_from_nothing_gets_nothing_new(hospitals: Hospitals) -> None:
    first = Server(hospitals, noise=1)
    assert [first.round(number) for number in range(3)] == [[None] * 3] * 3
    before = set(hospitals.answers)
    afresh = Server(hospitals, noise=2)
    assert afresh.round(0) == [None] * 3, "the very same question has the very same answer"
    assert [afresh.round(number) for number in (1, 2)] == [["no answer"] * 3] * 2
    assert set(hospitals.answers) == before
    assert len(hospitals.refused) >= 6
    assert all(hospitals.charged(place) == [0, 1, 2] for place in range(3))


def test_of_two_servers_one_gets_the_round(hospitals: Hospitals) -> None:
    one = Server(hospitals, noise=1)
    one.round(0)
    other = one.clone()
    one.round(1)
    other.round(1)  # the same question
    before = set(hospitals.answers)
    assert one.round(2) == [None] * 3
    assert other.round(2) == ["no answer"] * 3
    assert len(set(hospitals.answers)) == len(before) + 3
    assert all(hospitals.charged(place) == [0, 1, 2] for place in range(3))


def test_a_clone_that_passes_over_rounds_is_noticed(hospitals: Hospitals) -> None:
    """Silos that it has not asked in a round have no answer that could give it away; the history does."""
    one = Server(hospitals, noise=1)
    one.round(0)
    other = one.clone()
    one.round(1)
    before = set(hospitals.answers)
    assert other.round(2) == ["no answer"] * 3
    assert set(hospitals.answers) == before
    assert "the server says it asked something else" in hospitals.refused[-1]
    assert one.round(2) == [None] * 3


def test_a_server_that_was_rolled_back_gets_nothing_new(hospitals: Hospitals) -> None:
    server = Server(hospitals, noise=1)
    server.round(0)
    old = server.clone()
    server.round(1)
    server.round(2)
    before = set(hospitals.answers)
    assert old.round(1) == [None] * 3, "the same bytes as then"
    assert old.round(2) == ["no answer"] * 3
    assert set(hospitals.answers) == before
    assert "restarted from nothing or from an old copy" in hospitals.refused[0]
    shown = given(hospitals.folder / "silo-1")
    assert "another question" in shown["refused"][-1]["why"]
    assert [row["asked"] for row in shown["events"]] == [True] * 3


def test_without_a_memory_the_same_round_would_be_noised_twice(federation: Any, tmp_path: Path) -> None:
    """The control: silos that forget what they were asked give two noises for the same round, each on a ledger that
    knows of one.
    """
    updates = []
    for name in ("one", "other"):
        forgetful = Hospitals(tmp_path / name, federation)
        forgetful.accept()
        frame = forgetful.party(0).answer(asked(forgetful.offer, 0))
        updates.append(opened(frame, forgetful.offer, 0).update)
        assert forgetful.charged(0) == [0]
    assert updates[0] is not None
    assert updates[1] is not None
    assert not np.array_equal(updates[0], updates[1])


def test_a_replayed_answer_counts_once(hospitals: Hospitals) -> None:
    server = Server(hospitals)
    server.round(0)
    answers = list(hospitals.answers)
    line = PlainLine({10: lambda _: answers[0], 11: lambda _: answers[0], 12: lambda _: answers[1]})
    liar = hospitals.server(line, patience=Patience(timeout=0.1, clock=VirtualClock()))
    found = liar.answers(0, np.zeros(hospitals.offer.size))
    assert [answer.absence for answer in found] == [None, "no answer", "no answer"]
    with pytest.raises(RoundUnanswered):
        liar.answers(1, np.zeros(hospitals.offer.size))


def test_a_statement_is_given_to_one_last_question_only(hospitals: Hospitals) -> None:
    offer, party = hospitals.offer, hospitals.party(0)
    party.answer(asked(offer, 0))
    first = party.answer(asked(offer, offer.rounds))
    for weights in (0.5, 1.0, -1.0):
        with pytest.raises(SpecificationRefused, match="another question"):
            party.answer(asked(offer, offer.rounds, weights=weights))
    hospitals.kill(0)
    assert hospitals.party(0).answer(asked(offer, offer.rounds)) == first
    assert hospitals.charged(0) == [0]


def test_many_offers_do_not_get_more_than_the_owner_allows(federation: Any, tmp_path: Path) -> None:
    """Each plan is within the policy, and all of them would cost several times its budget."""
    policy = PartyPolicy(budget=Budget(epsilon=9.0, delta=1e-5))
    hospitals = Hospitals(tmp_path, federation, policy)
    party, first, taken = hospitals.party(0), hospitals.offer, []
    for number in range(5):
        offer = first.replaced(settings={**first.settings, "again": number})
        try:
            party.answer(offer.to_bytes(SERVER))
            taken.append(offer)
        except BudgetExceeded:
            continue
        for each in range(offer.rounds + 1):
            party.answer(asked(offer, each))
    assert len(taken) == 1, "its budget of 8, and what is left has no room for another"
    assert (verify(tmp_path / "silo-1" / LEDGER)["epsilon"] or 0) <= 9.0


def test_offers_that_are_taken_up_at_once_share_what_there_is(federation: Any, tmp_path: Path) -> None:
    """Before any round is charged, what was accepted is reserved: an offer that has no room beside it gets nothing."""
    hospitals = Hospitals(tmp_path, federation, PartyPolicy(budget=Budget(epsilon=9.0, delta=1e-5)))
    party, first = hospitals.party(0), calibrated(hospitals.offer, 5.5)
    offers = [first.replaced(settings={**first.settings, "again": number}) for number in range(3)]
    taken = [offer for offer in offers if _accepts(party, offer)]
    assert taken == offers[:2], "two of 5.5 come to less than 9, and three do not"
    for offer in taken:
        for number in range(offer.rounds):
            assert opened(party.answer(asked(offer, number)), offer, number).absence is None
    with pytest.raises(SpecificationRefused, match="not accepted"):
        party.answer(asked(offers[2], 0))
    with Ledger.read(tmp_path / "silo-1" / LEDGER) as ledger:
        assert ledger.promised().epsilon <= 9.0
        assert ledger.charges()[0] == 2 * first.rounds


def _accepts(party: Participant, offer: Offer) -> bool:
    try:
        return bool(party.answer(offer.to_bytes(SERVER)))
    except BudgetExceeded:
        return False


def test_a_plan_is_not_answered_oftener_than_it_pays_for(federation: Any, tmp_path: Path) -> None:
    """A server that offers more rounds than a silo's plan has asks on, and the ledger would have room."""
    hospitals = Hospitals(tmp_path, federation, PartyPolicy(budget=Budget(epsilon=50.0, delta=1e-5)))
    party, offer = hospitals.party(0), hospitals.offer.replaced(rounds=6)
    party.answer(offer.to_bytes(SERVER))
    found = [opened(party.answer(asked(offer, number)), offer, number) for number in range(6)]
    assert [answer.absence for answer in found] == [None] * 3 + ["budget spent"] * 3
    assert max(answer.epsilon for answer in found) <= 8.0
    assert hospitals.charged(0) == [0, 1, 2]


def test_an_answer_tells_nothing_exact(hospitals: Hospitals) -> None:
    """All that leaves: an update of noised steps, and a statement of what was charged."""
    offer, party = hospitals.offer, hospitals.party(0)
    found = opened(hospitals.reply(0, asked(offer, 0)), offer, 0)
    assert {name for name, value in vars(found).items() if value is not None} == {"silo", "round", "epsilon", "update"}
    _, head, _ = unsealed(hospitals.answers[-1], kind="silo", key=KEYS[NAMES[0]].public_key(), most=8 * offer.size)
    assert set(head) == {"epsilon", "absence", "kind", "plan", "round", "party"}
    frame = party.answer(asked(offer, offer.rounds))
    _, head, _ = unsealed(frame, kind="statement", key=KEYS[NAMES[0]].public_key(), most=0)
    assert set(head) == {"statement", "kind", "plan", "round", "party"}


def test_what_the_server_asks_for_besides_is_refused(hospitals: Hospitals) -> None:
    offer, party = hospitals.offer, hospitals.party(0)
    weights = np.zeros(offer.size, np.float32)
    for number, clip, clients in (
        (0, {"kind": "statement"}, ()),
        (3, {}, ()),
        (0, {}, (1,)),
        (0, {"clip_norm": 9}, ()),
    ):
        where = Place(plan=offer.fingerprint, round=number, party="")
        request = Request(place=where, weights=weights, clip=clip, clients=clients)
        with pytest.raises(IncrowdError, match=r"does not know|not for this party"):
            party.answer(request.to_bytes(SERVER))
    assert hospitals.charged(0) == []


EXPENSIVE: dict[str, tuple[dict[str, Any], str]] = {
    "60,000 kinds of rounds": (
        {"schedule": [{"rounds": 1, "cohort": 1.0, "noise_multiplier": 1.0}] * 60_000},
        "list of",
    ),
    "33 kinds of rounds": ({"schedule": [{"rounds": 1, "cohort": 1.0, "noise_multiplier": 1.0}] * 33}, "33 kinds of"),
    "a million rounds": ({"schedule": [{"rounds": 10**6, "cohort": 1.0, "noise_multiplier": 1.0}]}, "1000000 rounds"),
    "a million steps": ({"steps": 10**6}, "1000000 steps a round"),
    "many accountants": ({"accountants": ["RDP"] * 10**5}, "list of 100000"),
    "records in 4000 digits": ({"members": 10**4000}, "numbers that no plan has"),
}


@pytest.mark.parametrize("kind", EXPENSIVE)
def test_an_offer_that_takes_long_to_price_is_refused_before_that(
    kind: str, federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospitals = Hospitals(tmp_path, federation)
    party, first = hospitals.party(0), hospitals.offer
    change, words = EXPENSIVE[kind]
    offer = first.replaced(plans={**first.plans, "silo-1": {**first.plans["silo-1"], **change}})
    priced = list[Plan]()

    def failing(plan: Plan) -> None:
        priced.append(plan)
        raise OverflowError

    monkeypatch.setattr(Plan, "_priced", failing)
    with pytest.raises(SpecificationRefused, match=words):
        party.answer(offer.to_bytes(SERVER))
    assert not priced
    with pytest.raises(SpecificationRefused, match="numbers that a plan can have"):
        party.answer(first.to_bytes(SERVER))  # the control: it would be priced
    assert priced


@pytest.mark.parametrize("noise", [1e-300, 1e-6, 1e15, 2.0**53])
@pytest.mark.parametrize("cohort", [1e-300, 1e-9, 500.0])
def test_numbers_that_no_plan_has_are_an_error_of_ours(
    noise: float, cohort: float, federation: Any, tmp_path: Path
) -> None:
    hospitals = Hospitals(tmp_path, federation)
    schedule = [{"rounds": 1, "cohort": cohort, "noise_multiplier": noise}]
    for budget in (8.0, 2.0**53):
        stated = {"epsilon": budget, "delta": 1e-5}
        offer = with_plans(hospitals.offer, schedule=schedule, budget=stated)
        with pytest.raises(IncrowdError):  # at least for its budget, or its noise
            hospitals.party(0).answer(offer.to_bytes(SERVER))
    assert hospitals.charged(0) == []
    assert len(given(tmp_path / "silo-1")["refused"]) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_offers_for_other_numbers_of_records_do_not_tell_how_many_there_are(
    kind: OfferKind, federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silo of 500 records and one of 460 both state 500. Who offers plans for all numbers hears the same of both."""
    said = []
    for count in (500, 460):
        hospitals = Hospitals(tmp_path / str(count), federation)
        party, offer, own = hospitals.party(0), hospitals.offer, hospitals.own(0)
        learnt_from = replace(own, engine=own.engine.rehearsal(count))
        assert learnt_from.engine.held == count
        monkeypatch.setattr(party, "_learner", partial(_given, learnt_from))
        replies: list[int | str] = []
        for records in (450, 459, 460, 461, 499, 500, 501, 511, 512, 555, 556):
            other = with_plans(offer, members=records, batch=float(records))
            try:
                replies.append(len(party.answer(other.to_bytes(SERVER, kind=kind))))
            except IncrowdError as error:
                replies.append(f"{type(error).__name__}: {error}")
        said.append(replies)
    assert said[0] == said[1]
    assert [isinstance(reply, int) for reply in said[0]].count(True) == 1


def _given(own: OwnRecords, _: Offer) -> OwnRecords:
    return own


def test_delta_and_epsilon_of_another_promise_are_not_taken(federation: Any, tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path, federation, PartyPolicy(budget=BUDGET))
    first = hospitals.offer
    for budget in (Budget(epsilon=8.1, delta=1e-5), Budget(epsilon=8.0, delta=1e-3), Budget(epsilon=7.0, delta=1e-6)):
        plans = {name: first.plan_of(name).config.calibrate(budget) for name in NAMES}
        offer = first.replaced(plans={name: forms.to_json(plan) for name, plan in plans.items()})
        with pytest.raises((SpecificationRefused, BudgetExceeded), match="allows at most"):
            hospitals.party(0).answer(offer.to_bytes(SERVER))
    assert hospitals.charged(0) == []
    assert hospitals.party(0).answer(first.to_bytes(SERVER))
