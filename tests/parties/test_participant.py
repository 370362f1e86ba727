"""A party's brake: what it gives, what it refuses, and what it remembers."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from incrowd._random import SeededRandomness, SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError, DataError, SpecificationRefused
from incrowd.parties.contribution import MOST_BATCH, alone, part
from incrowd.parties.guard import LEDGER, MEMORY, given
from incrowd.parties.offer import RoundTask
from incrowd.parties.participant import Participant
from incrowd.parties.policy import PartyPolicy
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.privacy.mechanism.clipping import FixedClip, QuantileClip
from incrowd.privacy.plan.sampling import Poisson, Schedule, Step
from tests.parties.parties import CLIP, ROOMY, SERVER, Made, asked, offer_for, own, plan_of, request, zeros
from tests.parties.silo_parties import federation_of, own_of


def charged(folder: Path) -> list[int]:
    """The rounds that a party's ledger knows, in order."""
    with Ledger.read(folder / LEDGER) as ledger:
        return [int(e.content()["note"]["round"]) for e in ledger.entries() if e.kind == "charge"]


def test_asked_again_it_sends_the_same_bytes_and_charges_nothing(made: Made) -> None:
    offer = offer_for(plan_of())
    made.rest = {"randomness": SystemRandomness()}
    party = made.start()
    party.answer(offer.to_bytes(SERVER))
    first = party.answer(asked(offer, 0))
    assert party.answer(asked(offer, 0)) == first
    party.close()
    again = made.start()
    assert again.answer(asked(offer, 0)) == first
    assert charged(made.folder) == [0]
    assert verify(made.folder / LEDGER)["intact"]


@pytest.mark.slow
def test_rounds_that_it_was_not_drawn_for_are_paid_too(made: Made) -> None:
    step = Step(rounds=5, cohort=1, noise_multiplier=1.0)
    config = replace(plan_of().config, schedule=Schedule((step,)), sampling=Poisson)
    offer = offer_for(config.plan(ROOMY))
    party = made.start()
    party.answer(offer.to_bytes(SERVER))
    party.answer(asked(offer, 1))
    party.answer(asked(offer, 4))
    assert charged(made.folder) == [0, 1, 2, 3, 4]
    with Ledger.read(made.folder / LEDGER) as ledger:
        assert ledger.spent().epsilon == pytest.approx(offer.plan.price.epsilon, rel=1e-9)


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (lambda offer: asked(offer, 2, weights=1.0), "another question was asked in round 2"),
        (lambda offer: asked(offer, 1), "round 1 comes after round 2"),
        (lambda offer: asked(offer, 0, weights=1.0), "another question was asked in round 0"),
        (lambda offer: asked(offer, 4), "the plan does not know"),
        (lambda offer: asked(offer, 3, clip=FixedClip(clip_norm=5.0)), "the plan does not know"),
        (
            lambda offer: replace(request(offer, 3), weights=request(offer, 3).weights[1:]).to_bytes(SERVER),
            "another model",
        ),
        (lambda offer: asked(offer.replaced(columns=()), 3), "has not accepted"),
    ],
    ids=["cloned", "rolled back", "afresh", "too many", "another clip", "another model", "another plan"],
)
def test_what_is_not_the_plans_next_round_is_refused_and_noted(
    then: Callable[[Any], bytes], words: str, made: Made
) -> None:
    offer = offer_for(plan_of())
    party = made.start()
    party.answer(offer.to_bytes(SERVER))
    for number in (0, 2):
        party.answer(asked(offer, number))
    with pytest.raises(SpecificationRefused, match=words):
        party.answer(then(offer))
    assert charged(made.folder) == [0, 1, 2]
    with sqlite3.connect(made.folder / MEMORY) as connection:
        [[why]] = connection.execute("SELECT why FROM refusals").fetchall()
    assert words in why
    party.answer(asked(offer, 3))


def test_what_the_server_has_not_signed_is_refused(made: Made) -> None:
    offer, stranger = offer_for(plan_of()), Ed25519PrivateKey.generate()
    party = made.start()
    with pytest.raises(DataError, match="signature"):
        party.answer(offer.to_bytes(stranger))
    party.answer(offer.to_bytes(SERVER))
    with pytest.raises(DataError, match="signature"):
        party.answer(request(offer, 0).to_bytes(stranger))
    assert charged(made.folder) == []


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"fields": ["age"]}, "the field dose"),
        ({"models": ["mlp"]}, "kind 'linear'"),
        ({"least_noise": 2.0}, "less than this party asks for"),
        ({"most_weights": 3}, "8 weights are more"),
        ({"most_rounds": 3}, "4 rounds are more"),
        ({"least_colluders": 2}, "this party asks for 2"),
    ],
)
@pytest.mark.filterwarnings("ignore::incrowd.privacy.plan.plan.PrivacyWarning")
def test_what_the_policy_does_not_allow_is_refused(policy: dict[str, Any], words: str, made: Made) -> None:
    made.policy = PartyPolicy(budget=ROOMY, **policy)
    plan = plan_of(noise_by="parties" if "least_colluders" in policy else "server")
    with pytest.raises(SpecificationRefused, match=words):
        made.start().answer(offer_for(plan).to_bytes(SERVER))
    assert not (made.folder / LEDGER).exists()


def test_a_day_has_its_limit_and_the_next_day_its_own(made: Made) -> None:
    today = [date(2026, 3, 1)]
    made.policy = PartyPolicy(budget=ROOMY, daily_epsilon=5.0)
    made.rest["today"] = lambda: today[0]
    offer = offer_for(plan_of())
    party = made.start()
    party.answer(offer.to_bytes(SERVER))
    answered = next(number for number in range(4) if not _answers(party, asked(offer, number)))
    assert answered > 0
    today[0] = date(2026, 2, 1)
    with pytest.raises(BudgetExceeded, match="2026-03-01"):
        party.answer(asked(offer, answered))
    today[0] = date(2026, 3, 2)
    party.answer(asked(offer, answered))
    assert charged(made.folder) == list(range(answered + 1))


def _answers(party: Participant, frame: bytes) -> bool:
    try:
        party.answer(frame)
    except BudgetExceeded:
        return False
    return True


@pytest.mark.parametrize("noise_by", ["server", "party"])
def test_killed_before_the_answer_is_kept_it_answers_again_or_loses_the_round(
    noise_by: str, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = offer_for(plan_of(noise_by=noise_by))
    made.rest = {"randomness": SystemRandomness()}
    party = made.start()
    party.answer(offer.to_bytes(SERVER))

    class Killed(BaseException): ...

    def killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(party.guard, "keep", killed)
    with pytest.raises(Killed):
        party.answer(asked(offer, 0))
    party.close()
    again = made.start()
    if noise_by == "server":
        again.answer(asked(offer, 0))
    else:
        with pytest.raises(SpecificationRefused, match="lost"):
            again.answer(asked(offer, 0))
        again.answer(asked(offer, 1))
    assert charged(made.folder) == [0, *([1] if noise_by == "party" else [])]


def test_seeded_noise_may_be_drawn_again(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = offer_for(plan_of(noise_by="party"))
    whole, cut = made.start(), Made(made.folder.parent / "cut")
    whole.answer(offer.to_bytes(SERVER))
    expected = whole.answer(asked(offer, 0))
    party = cut.start()
    party.answer(offer.to_bytes(SERVER))
    monkeypatch.setattr(party.guard, "keep", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        party.answer(asked(offer, 0))
    party.close()
    assert cut.start().answer(asked(offer, 0)) == expected
    assert charged(cut.folder) == [0]


def test_a_quantile_moves_and_the_rest_of_its_clip_does_not(made: Made) -> None:
    clip = QuantileClip(clip_norm=0.1, bit_noise=4.0)
    offer = offer_for(plan_of(clip=clip))
    party = made.start()
    party.answer(offer.to_bytes(SERVER))
    first = request(offer, 0, clip=clip)
    assert b'"unclipped":0' in party.answer(first.to_bytes(SERVER))
    known = {"history": bytes.fromhex(first.digest)}
    assert b'"unclipped":1' in party.answer(asked(offer, 1, clip=replace(clip, clip_norm=50.0), **known))
    others = replace(clip, bit_noise=100.0), replace(clip, learning_rate=0.9), replace(clip, quantile=0.9)
    for other in others:
        with pytest.raises(SpecificationRefused, match="the plan does not know"):
            party.answer(asked(offer, 2, clip=other))


@pytest.mark.parametrize("noise_by", ["server", "party"])
def test_how_long_a_contribution_was_is_not_told_where_nobody_pays_for_it(noise_by: str, made: Made) -> None:
    offer = offer_for(plan_of(noise_by=noise_by, clip=FixedClip(clip_norm=100.0)))
    party = made.start()
    party.answer(offer.to_bytes(SERVER))
    frame = party.answer(asked(offer, 0, clip=FixedClip(clip_norm=100.0)))
    assert b'"unclipped":0' in frame


def test_local_noise_without_a_receipt_is_refused(made: Made) -> None:
    offer = offer_for(plan_of(noise_by="party"))
    task, drawn = RoundTask.stated(offer, 0, CLIP), SeededRandomness(1)
    with pytest.raises(ConfigError, match="charge the round"):
        part(task, zeros(), [0], engine=made.engine(offer), randomness=drawn, receipt=None)


def test_one_client_has_one_number() -> None:
    with pytest.raises(ConfigError, match="one of 3"):
        alone(own(0), number=3, clients=3)


def test_more_records_at_once_than_memory_has_are_refused() -> None:
    found = replace(own_of(federation_of(), 0), physical_batch=2 * MOST_BATCH)
    offer = offer_for(plan_of()).replaced(size=found.engine.size, classes=found.classes)
    with pytest.raises(SpecificationRefused, match="records at once"):
        found.check(offer, stated=found.stated)


def test_a_disk_full_of_offers_takes_no_more(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    party = made.start()
    party.answer(offer_for(plan_of()).to_bytes(SERVER))
    monkeypatch.setattr("incrowd.parties.guard.MOST_OFFERED", 1000)
    with pytest.raises(SpecificationRefused, match="bytes of offers"):
        party.answer(offer_for(plan_of(5)).to_bytes(SERVER))
    party.guard.check_ledger()  # which is open, and as it was
    party.close()


def test_what_fails_at_the_party_is_noted_by_its_kind_alone(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    party = made.start()
    monkeypatch.setattr(party, "_learner", lambda _: [][len("of a row")])
    with pytest.raises(IndexError):
        party.answer(offer_for(plan_of()).to_bytes(SERVER))
    [refused] = given(made.folder, begun=False)["refused"]
    assert refused["why"] == "it was not answered: IndexError"
