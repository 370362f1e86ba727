"""A server that the parties listen to, and that is not honest: what it asks of a party, and what that costs it."""

import json
import math
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from incrowd.errors import BudgetExceeded, ConfigError, IncrowdError, SpecificationRefused
from incrowd.parties.contribution import Part
from incrowd.parties.frames import Place, Request, _statement
from incrowd.parties.guard import LEDGER, MEMORY, given
from incrowd.parties.offer import Offer
from incrowd.parties.policy import PartyPolicy
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.mechanism.clipping import PerLayerClip
from incrowd.privacy.plan import forms
from incrowd.privacy.plan.plan import PlanConfig
from tests.parties.parties import MODEL, ROOMY, SERVER, Made, asked, offer_for, past, plan_of, request
from tests.parties.test_participant import charged

pytestmark = pytest.mark.watched

Form = dict[str, Any]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "north")


def signed(form: Form) -> bytes:
    """An offer as a server signs it that has not looked at it either."""
    try:
        plan = forms.fingerprint(form)
    except ValueError:  # canonical JSON has no such numbers
        plan = "p" * 64
    text = json.dumps({"offer": form, "kind": "offer", "plan": plan, "round": 0, "party": ""}).encode()
    front = b"incrowd1" + len(text).to_bytes(4, "little") + bytes(8) + text
    return front + SERVER.sign(_statement(front))


def poisson(**rest: Any) -> Form:
    """An offer whose clients are drawn, which takes longest to price."""
    form = offer_for(plan_of()).to_json()
    form["plans"][""] |= {"sampling": "poisson", "members": 3, "budget": {"epsilon": 1e6, "delta": 1e-5}} | rest
    return form


def steps(count: int, rounds: int = 1) -> list[Form]:
    return [{"rounds": rounds, "cohort": 1.0, "noise_multiplier": 1 + i / 1e6} for i in range(count)]


def correlated(**rest: Any) -> Form:
    """An offer whose clients take turns, whose noise is correlated over the rounds."""
    form = forms.to_json(PlanConfig.in_turns(clients=3, rounds=10, groups=3).calibrate(Budget(epsilon=8.0, delta=1e-5)))
    return offer_for(plan_of()).to_json() | {"plans": {"": form | rest}}


EXPENSIVE: dict[str, tuple[Callable[[], Form], str]] = {
    "60,000 kinds of rounds": (lambda: poisson(schedule=steps(60_000)), "list of 60000"),
    "33 kinds of rounds": (lambda: poisson(schedule=steps(33)), "33 kinds of rounds are more"),
    "a million rounds": (lambda: poisson(schedule=steps(1, rounds=10**6)), "1000000 rounds are more"),
    "a million correlated rounds": (lambda: correlated(schedule=steps(1, rounds=10**6)), "1000000 rounds are more"),
    "many layers": (
        lambda: poisson(clip={"kind": "PerLayerClip", "clip_norms": [1.0] * 10**5, "parts": [1]}),
        "list of 100000",
    ),
    "many accountants": (lambda: poisson(accountants=["RDP"] * 10**5), "list of 100000"),
    "clients in 4000 digits": (lambda: poisson(members=10**4000), "numbers that no plan has"),
    "noise in 400 digits": (lambda: poisson(budget={"epsilon": 10**400}), "numbers that no plan has"),
    "infinite noise": (lambda: poisson(schedule=steps(1), budget={"epsilon": math.inf}), "numbers that no plan has"),
    "noise that is no number": (lambda: poisson(budget={"delta": math.nan}), "numbers that no plan has"),
    "rounds by name": (lambda: poisson(schedule=[{"rounds": "1"}]), "does not say how many"),
    "a schedule of nothing": (lambda: poisson(schedule=[None]), "does not say how many"),
    "a plan without rounds": (lambda: poisson(schedule=7), "does not say how many"),
    "no plan": (lambda: offer_for(plan_of()).to_json() | {"plans": {"": None}}, "plans"),
    "weights by name": (lambda: offer_for(plan_of()).to_json() | {"size": "8"}, "size"),
    "weights without end": (lambda: offer_for(plan_of()).to_json() | {"size": 10**4000}, "numbers that no plan has"),
}


@pytest.mark.parametrize("kind", EXPENSIVE)
def test_an_offer_that_takes_long_to_price_is_refused_before_that_and_noted(kind: str, made: Made) -> None:
    form, words = EXPENSIVE[kind]
    party, frame = made.start(), signed(form())
    tracemalloc.start()
    with pytest.raises(SpecificationRefused, match=words):
        party.answer(frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * 2**20
    assert not (made.folder / LEDGER).exists()
    [refused] = given(made.folder)["refused"]
    assert refused["round"] is None


def test_the_policy_looks_before_the_price_is_recomputed(made: Made) -> None:
    """A price that is wrong is not noticed any more: nobody has computed it."""
    wrong = offer_for(plan_of()).to_json() | {"plans": {"": cheap()}}
    made.policy = PartyPolicy(budget=ROOMY, most_rounds=3)
    with pytest.raises(SpecificationRefused, match="4 rounds are more"):
        made.start().answer(signed(wrong))


def test_who_allows_more_gets_as_far_as_the_price(made: Made) -> None:
    """The control: it is the policy that keeps the party from pricing them, and nothing else."""
    made.policy = PartyPolicy(budget=ROOMY, most_steps=33)
    everyone = [step | {"cohort": 3.0} for step in steps(33)]  # which are cheap to price
    form = poisson(sampling="everyone", schedule=everyone, budget={"epsilon": 1.0, "delta": 1e-5}) | {"rounds": 33}
    with pytest.raises(SpecificationRefused, match="these rounds cost"):
        made.start().answer(signed(form))


@pytest.mark.parametrize("noise", [1e-300, 1e-6, 1e15, 2.0**53])
@pytest.mark.parametrize("cohort", [1e-300, 1e-9, 3.0])
def test_numbers_that_no_plan_has_are_an_error_of_ours(noise: float, cohort: float, made: Made) -> None:
    party = made.start()
    plan = poisson(schedule=[{"rounds": 1, "cohort": cohort, "noise_multiplier": noise}])
    with pytest.raises(IncrowdError):  # at least for its fingerprint
        party.answer(signed(plan))
    assert len(given(made.folder)["refused"]) == 1


def refused_offers() -> dict[str, tuple[bytes, str]]:
    plan = plan_of(budget=Budget(epsilon=1e3, delta=1e-3))
    return {
        "a field": (offer_for(plan, columns=("name",)).to_bytes(SERVER), "the field name"),
        "another's": (offer_for(plan, parties=("west", "east", "south")).to_bytes(SERVER), "names no party north"),
        "weights": (offer_for(plan).replaced(size=9).to_bytes(SERVER), "9 weights"),
        "less noise than it says": (
            signed(offer_for(plan).to_json() | {"plans": {"": cheap()}}),
            "these rounds cost",
        ),
        "no room": (offer_for(plan_of(noise=0.01)).to_bytes(SERVER), "allows at most 1000"),
    }


def cheap() -> Form:
    """A plan that says that it costs less than it does."""
    form = forms.to_json(plan_of())
    return form | {"budget": {"epsilon": 0.1, "delta": 1e-5}}


@pytest.mark.parametrize("kind", refused_offers())
def test_an_offer_that_is_refused_is_shown_to_the_owner(kind: str, made: Made) -> None:
    frame, words = refused_offers()[kind]
    made.policy = PartyPolicy(budget=replace(ROOMY, epsilon=1e3), fields=("age", "dose"))
    party = made.start()
    with pytest.raises((SpecificationRefused, BudgetExceeded, ConfigError)):
        party.answer(frame)
    found = given(made.folder)
    [refused] = found["refused"]
    assert words in refused["why"]
    assert (refused["round"], refused["server"]) == (None, party.identity.server_name)
    assert found["events"] == []


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


def test_however_much_is_said_little_of_it_is_remembered(made: Made) -> None:
    party, offer = made.start(), offer_for(plan_of())
    long = replace(request(offer, 0), place=Place(plan="p" * 10**6, round=0, party=""))
    with pytest.raises(IncrowdError):
        party.answer(long.to_bytes(SERVER))
    party.answer(offer.to_bytes(SERVER))
    for _ in range(3):
        with pytest.raises(IncrowdError):
            party.answer(replace(request(offer, 0), clip={"kind": "x" * 10**6}).to_bytes(SERVER))
    party.close()
    assert len(given(made.folder)["refused"]) == 3
    assert (made.folder / MEMORY).stat().st_size < 100_000


def test_a_clip_for_other_layers_than_the_models_is_refused(made: Made) -> None:
    """Bounds of one layer on the numbers of another: nobody has planned that, and the first layer may get them all."""
    assert MODEL.parts == (MODEL.size,)
    party = made.start()
    clip = PerLayerClip(clip_norms=(0.1, 5.0), parts=(3, MODEL.size - 3))
    with pytest.raises(SpecificationRefused, match="for layers of"):
        party.answer(offer_for(plan_of(clip=clip)).to_bytes(SERVER))
    assert not (made.folder / LEDGER).exists()
    clip = PerLayerClip(clip_norms=(5.0,), parts=MODEL.parts)
    party.answer(offer_for(plan_of(clip=clip)).to_bytes(SERVER))


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


def _answers(party: Any, frame: bytes) -> bool:
    try:
        party.answer(frame)
    except BudgetExceeded:
        return False
    return True


def cloned(offer: Offer, since: int, number: int) -> Request:
    """What the copy of a server asks that goes on by itself from some round: with noise, and so weights, of its own."""
    own = {f"round_{each}": request(offer, each, weights=9.0, history=b"") for each in range(since, number)}
    return request(offer, number, weights=9.0, history=past(offer, number, **own))


@pytest.mark.parametrize("since", [0, 1, 2])
def test_a_clone_that_passes_over_a_round_is_noticed(since: int, made: Made) -> None:
    """The clone never asks what the party was asked by the other one: it goes on with the next round."""
    offer = offer_for(plan_of())
    party = made.start()
    party.answer(offer.to_bytes(SERVER))
    party.answer(asked(offer, 2))
    with pytest.raises(SpecificationRefused, match="up to round 2 the server says it asked something else"):
        party.answer(cloned(offer, since, 3).to_bytes(SERVER))
    party.close()
    assert charged(made.folder) == [0, 1, 2]
    assert "two of it" in given(made.folder)["refused"][-1]["why"]
    made.start().answer(asked(offer, 3))  # the one that it knows goes on


def test_a_clone_cannot_be_told_by_who_was_not_asked_since(made: Made) -> None:
    """The control, and what stays open: a party that the copies have in common all that it was asked by."""
    offer = offer_for(plan_of())
    party = made.start()
    party.answer(offer.to_bytes(SERVER))
    party.answer(asked(offer, 1))
    party.answer(cloned(offer, 2, 3).to_bytes(SERVER))
    with pytest.raises(SpecificationRefused, match="another question was asked in round 3"):
        party.answer(asked(offer, 3))


@pytest.mark.parametrize("history", [b"", bytes(32), bytes(96)])
def test_a_question_without_its_history_is_refused(history: bytes, made: Made) -> None:
    offer = offer_for(plan_of())
    party = made.start()
    party.answer(offer.to_bytes(SERVER))
    party.answer(asked(offer, 0))
    with pytest.raises(IncrowdError, match=r"asked|not as many"):
        party.answer(asked(offer, 2, history=history))
    assert charged(made.folder) == [0]


def test_who_was_killed_while_it_trained_still_knows_the_history(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = offer_for(plan_of())
    party = made.start()
    party.answer(offer.to_bytes(SERVER))
    monkeypatch.setattr(Part, "answer", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        party.answer(asked(offer, 2))
    monkeypatch.undo()
    party.close()
    party = made.start()
    odd = past(offer, 2, round_1=request(offer, 1, weights=9.0))
    with pytest.raises(SpecificationRefused, match="something else"):
        party.answer(asked(offer, 2, history=odd))
    with pytest.raises(SpecificationRefused, match="something else"):
        party.answer(cloned(offer, 2, 3).to_bytes(SERVER))
    party.answer(asked(offer, 2))
