"""A server against a party, and a party against all others: what each may take, and what it may cost."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent

from incrowd import _extensions
from incrowd.errors import DataError, IncrowdError, RoundUnanswered, SpecificationRefused
from incrowd.parties.contribution import Part, bundled
from incrowd.parties.frames import Place, Request, opened, sealed, unsealed
from incrowd.parties.guard import MEMORY, given
from incrowd.parties.keys import answer_key, question_key
from incrowd.parties.offer import Offer
from incrowd.parties.policy import PartyPolicy
from incrowd.parties.roster import MOST_PARTIES, Card, Roster
from incrowd.parties.secure_sum import SumPlan
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.mechanism.clipping import ThirdPartyClip
from incrowd.privacy.plan import forms
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.sampling import ThirdPartySampling
from tests.attacks.test_a_server_and_masks import Server, offer_from
from tests.parties.crew import plan_of as shared_plan
from tests.parties.members import Hospitals, MemberLine
from tests.parties.parties import SERVER, Made, offer_for, plan_of
from tests.parties.test_masked import in_earnest, lost, served

pytestmark = [
    pytest.mark.watched,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::incrowd.privacy.plan.plan.PrivacyWarning"),
]


@pytest.fixture
def hospitals(tmp_path: Path) -> Hospitals:
    made = Hospitals(tmp_path)
    in_earnest(made, rounds=6)
    return made


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "north")


class Lying(MemberLine):
    """A line on which cedar's answers of one kind are others, which it signs as it signs its own."""

    def __init__(
        self, hospitals: Hospitals, kind: str, head: dict[str, Any], body: Callable[[bytes], bytes] = bytes
    ) -> None:
        super().__init__(hospitals)
        self.kind, self.head, self.body = kind, head, body

    def _answer(self, name: str, content: bytes) -> bytes | None:
        answer = super()._answer(name, content)
        if name != "cedar" or answer is None:
            return answer
        key = answer_key(self.hospitals.folder / "cedar")
        try:
            place, head, body = unsealed(answer, kind=self.kind, key=key.public_key(), most=2**24)
        except DataError:
            return answer
        rest = {each: value for each, value in head.items() if each not in ("kind", "plan", "round", "party")}
        return sealed(self.kind, place, rest | self.head, self.body(bytes(body)), key=key)


@pytest.mark.parametrize("head", [{"list": "another"}, {}], ids=["lies", "control"])
def test_a_party_that_signs_answers_to_another_list_loses_no_more_rounds_than_a_silent_one(
    head: dict[str, Any], hospitals: Hospitals
) -> None:
    line = Lying(hospitals, "masked", head)
    served(hospitals, line)
    line.close()
    paid = len(given(hospitals.folder / "amber")["events"])
    assert paid == 6
    assert sum(lost(hospitals)) <= 2, f"amber paid {paid} rounds, and {sum(lost(hospitals))} were lost"


@pytest.mark.parametrize(
    "head", [{"question": "0" * 64}, {"random": "0"}, {}], ids=["another question", "no random number", "control"]
)
def test_one_party_that_says_it_is_ready_for_something_else_does_not_stop_the_run(
    head: dict[str, Any], hospitals: Hospitals
) -> None:
    line = Lying(hospitals, "ready", head)
    try:
        found = served(hospitals, line)
    finally:
        line.close()
    assert found["rounds"] == 6


@pytest.mark.parametrize("replayed", [True, False], ids=["replayed", "control"])
def test_a_list_of_a_round_before_that_comes_again_takes_no_part_from_the_next(
    replayed: bool, hospitals: Hospitals
) -> None:
    server = Server(hospitals).accepted()
    server.ready(0)
    before = server.sums._list
    first = server.said("amber", before)
    server.ready(1)
    if replayed:
        assert server.said("amber", before) == first
    assert server.said("amber", server.sums._list)
    assert server.charged("amber") == 2


@pytest.mark.parametrize("length", [60_000, 60], ids=["long", "control"])
def test_refused_lists_take_a_few_megabytes_at_most_however_long_their_labels_are(length: int, made: Made) -> None:
    party = made.start()
    for number in range(40):
        place = Place(plan="0" * 64, round=number, party="")
        head = {"label": f"{number:04}" + "x" * length, "question": "", "parties": {}}
        with pytest.raises(SpecificationRefused, match="not accepted"):
            party.answer(sealed("list", place, head, b"", key=SERVER))
    party.close()
    assert (made.folder / MEMORY).stat().st_size < 40 * 1000 + 50_000, "10,000 of them are kept"


@pytest.mark.parametrize("parties", [MOST_PARTIES, 50], ids=["the most", "control"])
def test_the_keys_of_as_many_parties_as_a_roster_may_have_can_be_handed_on(parties: int) -> None:
    keys = [Ed25519PrivateKey.generate() for _ in range(parties)]
    names = [f"party {number:03}" for number in range(parties)]
    roster = Roster(tuple(Card.of(name, key) for name, key in zip(names, keys, strict=True)))
    plan = SumPlan(plan=shared_plan(parties), roster=roster, size=10)
    place = Place(plan=plan.name, round=0, party="party 000")
    hellos = [sealed("hello", place, {}, bytes(32 + 1184), key=keys[0])] * parties
    hidden = [sealed("sealed", place, {}, bytes(1088 * left), key=keys[0]) for left in reversed(range(parties))]
    pieces = [*hellos, *hidden]
    sizes = {"sizes": list(map(len, pieces))}
    frame = sealed("keys", Place(plan="0" * 64, round=2, party=""), sizes, b"".join(pieces), key=SERVER)
    found, others = bundled(plan, opened(frame, ("keys",), key=SERVER.public_key(), most=2**23))
    assert len(found) == len(others) == parties


class Likely:
    """A sampler of some package, which states how likely a client is drawn: incrowd does not verify that."""

    relation = NeighboringRelation.ADD_OR_REMOVE_ONE

    def sample(self, stream: Any, **_: Any) -> Any:
        raise NotImplementedError

    def event(self, noise_multiplier: float, **_: Any) -> Any:
        return PoissonSampledDpEvent(1e-6, GaussianDpEvent(noise_multiplier))


@pytest.mark.parametrize("named", ["clip", "sampler", "none"])
def test_no_extension_that_a_server_names_in_a_plan_runs_at_a_party(
    named: str, hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that a party has for another federation: its owner allows no code (`allow.algorithms`, `modules`)."""
    in_earnest(hospitals)
    text = (hospitals.folder / "there.toml").read_text().replace('noise_by = "parties"\n', "")
    (hospitals.folder / "there.toml").write_text(text.replace("colluders = 1\n", ""))
    monkeypatch.setattr(_extensions, "_REGISTERED", {})
    monkeypatch.setattr(_extensions, "_FIRST", {})
    rows: list[tuple[int, ...]] = []

    def clip(contributions: Any, clip_norm: float) -> Any:
        rows.append(contributions.shape)
        return contributions * min(1.0, clip_norm / max(float(np.linalg.norm(contributions)), 1e-9))

    _extensions.register("clips", "mine", clip)
    _extensions.register("samplers", "mine", Likely())
    plain, key = offer_from(hospitals), question_key(hospitals.folder / "server")
    parts: dict[str, dict[str, Any]] = {
        "clip": {"clip": ThirdPartyClip(name="mine", clip_norm=1.0)},
        "sampler": {"sampling": ThirdPartySampling(name="mine")},
        "none": {},
    }
    plan = replace(plain.plan.config, **parts[named]).plan(plain.plan.budget)
    more = {"columns": plain.columns, "settings": plain.settings, "parties": plain.parties}
    offer = Offer.of_plan(plan, size=plain.size, **more)
    rows.clear()
    party = hospitals.member("amber").open()
    try:
        if named == "none":
            assert party.answer(offer.to_bytes(key))
        else:
            with pytest.raises(SpecificationRefused):
                party.answer(offer.to_bytes(key))
        form = forms.to_json(forms.RoundForm(plan=offer.fingerprint, round=0, clip=plan.config.clip))["clip"]
        place = Place(plan=offer.fingerprint, round=0, party="")
        with suppress(SpecificationRefused):
            party.answer(Request(place=place, weights=np.zeros(offer.weights, np.float32), clip=form).to_bytes(key))
    finally:
        party.close()
    assert rows == []


def _offered(form: dict[str, Any]) -> bytes:
    place = Place(plan=forms.fingerprint(form), round=0, party="")
    return sealed("offer", place, {"offer": form}, b"", key=SERVER)


def with_plan(form: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """An offer whose plan says something else."""
    [(name, plan)] = form["plans"].items()
    return form | {"plans": {name: plan | changes}}


FRAMES = {
    "no text in a request": lambda _: sealed(
        "request", Place(plan="\ud800", round=0, party=""), {"clip": {}, "clients": [], "size": 0}, b"", key=SERVER
    ),
    "no text in a list": lambda _: sealed(
        "list", Place(plan="0", round=0, party=""), {"label": "\ud800"}, b"", key=SERVER
    ),
    "accountants in a list": lambda form: _offered(with_plan(form, accountants=[["RDP"]])),
    "accountants by number": lambda form: _offered(with_plan(form, accountants=7)),
    "digits": lambda form: _offered(form | {"classes": 10**4000}),
    "control": lambda form: _offered(form | {"size": 10**4000}),
}


@pytest.mark.parametrize("frame", FRAMES)
def test_what_no_party_can_do_is_refused_and_noted_whatever_the_server_writes(frame: str, made: Made) -> None:
    party = made.start()
    try:
        with pytest.raises(IncrowdError):
            party.answer(FRAMES[frame](offer_for(plan_of()).to_json()))  # type: ignore[no-untyped-call]  # of several kinds
        noted = frame != "no text in a request"  # which is no frame, by whoever it is
        assert len(given(made.folder, begun=False)["refused"]) == noted
    finally:
        party.close()


@pytest.mark.parametrize("epsilon", [1e12, 3.0], ids=["beyond the owner's", "control"])
def test_a_plan_beyond_all_that_the_owner_allows_is_refused_before_it_is_priced(
    epsilon: float, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 such kinds of rounds, which a policy allows, take a minute and a gigabyte; the control is priced."""
    priced = list[Plan]()

    def failing(plan: Plan) -> None:
        priced.append(plan)
        raise OverflowError

    made.policy = PartyPolicy(budget=Budget(epsilon=3.0, delta=1e-5))
    form = offer_for(plan_of()).to_json()
    monkeypatch.setattr(Plan, "_priced", failing)
    steps = [
        {"rounds": 312, "cohort": 0.001 + kind * 1e-5, "noise_multiplier": 0.01 + kind * 1e-4} for kind in range(8)
    ]
    (plan,) = form["plans"].values()
    plan |= {"sampling": "poisson", "schedule": steps, "budget": {"epsilon": epsilon, "delta": 1e-5}}
    party = made.start()
    with pytest.raises(IncrowdError):
        party.answer(_offered(form | {"rounds": 8 * 312}))
    party.close()
    assert len(priced) == (epsilon == 3.0)


@pytest.mark.parametrize("lies", [True, False], ids=["lies", "control"])
def test_a_party_that_sends_wrong_numbers_costs_the_others_two_rounds(lies: bool, hospitals: Hospitals) -> None:
    """Masks hide which party lies, so the run ends before all budgets are spent on nothing."""
    line = Lying(hospitals, "masked", {}, (lambda body: os.urandom(len(body))) if lies else bytes)
    if lies:
        with pytest.raises(RoundUnanswered, match="one of them sends wrong numbers"):
            served(hospitals, line)
    else:
        served(hospitals, line)
    line.close()
    assert len(given(hospitals.folder / "amber")["events"]) == (2 if lies else 6)
    assert lost(hospitals) == [lies] * (2 if lies else 6)


NONE: dict[str, Callable[[bytes], bytes]] = {
    "X25519": lambda body: bytes(32) + body[32:],
    "ML-KEM": lambda body: body[:32] + b"\xff" * len(body[32:]),
}


@pytest.mark.parametrize("kind", NONE)
def test_a_party_whose_keys_are_none_is_the_one_that_is_named(kind: str, hospitals: Hospitals) -> None:
    """Others could make no secret of them, and would be silent in its place."""
    line = Lying(hospitals, "hello", {}, NONE[kind])
    with pytest.raises(DataError, match=r"and these did not: cedar$"):
        served(hospitals, line)
    line.close()
    assert not given(hospitals.folder / "amber")["events"]
    honest = MemberLine(hospitals)  # the control: nothing was paid, and it has its own keys
    served(hospitals, honest)
    honest.close()
    assert len(given(hospitals.folder / "amber")["events"]) == 6


def test_a_list_with_random_numbers_that_are_none_is_refused_unpaid(hospitals: Hospitals) -> None:
    server = Server(hospitals).accepted()
    server.ready()
    listed = server.sums.server._listed[0]
    for number in ("\ud800", "0" * 63, "G" * 64, "0" * 65):
        odd = replace(listed, parties={**listed.parties, "birch": number})
        with pytest.raises((DataError, UnicodeError)):
            server.said("amber", odd.to_bytes(server.key))
    part = server.line.parties["amber"]._parts[server.offer.fingerprint]
    assert (part.ready, server.charged("amber")) == (True, 0)
    server.said("amber", listed.to_bytes(server.key))  # the control
    assert (part.ready, server.charged("amber")) == (False, 1)


def test_a_part_that_waits_for_its_list_stays_while_other_offers_come(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = (offer_for(plan_of(), settings={"model": {"kind": "linear"}, "again": n}) for n in range(4))
    party = made.start()
    for waits in (False, True):
        waiting = [first] if waits else []
        monkeypatch.setattr(Part, "ready", property(lambda self: self.offer in waiting))  # noqa: B023 - used at once
        for offer in (first, *others):
            party.answer(offer.to_bytes(SERVER))
        assert (first.fingerprint in party._parts) == waits
    party.close()
