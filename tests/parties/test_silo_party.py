"""Silos that are real parties, and a server that holds none of their records."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from incrowd.algorithms.silos import Answer
from incrowd.errors import BudgetExceeded, ConfigError, DataError, IncrowdError, RehearsalFailed, SpecificationRefused
from incrowd.parties.contribution import OwnRecords
from incrowd.parties.frames import Place, opened, read_silo, sealed
from incrowd.parties.guard import LEDGER, given
from incrowd.parties.offer import Offer, OfferKind
from incrowd.parties.policy import PartyPolicy
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.privacy.plan import forms
from tests.parties.silo_parties import BUDGET, KEYS, SERVER, Hospitals, asked, federation_of
from tests.runs.test_silo_run import rows as rows_of

pytestmark = pytest.mark.usefixtures("one_thread")


def weights(folder: Path) -> dict[str, list[float]]:
    return {name: array.tolist() for name, array in load_file(folder / "model.safetensors").items()}


def rows(folder: Path) -> list[dict[str, Any]]:
    """What is remembered of each round, but for what the server measures on examples of its own."""
    return [row | {"accuracy": None, "loss": None} for row in rows_of(folder)]


@pytest.fixture(scope="module")
def seeded() -> Any:
    """The silos of a small run, made once."""
    return federation_of()


@pytest.fixture
def hospitals(seeded: Any, tmp_path: Path) -> Hospitals:
    return Hospitals(tmp_path / "parties", seeded)


@pytest.fixture(scope="module")
def earnest() -> Any:
    """The same under the operating system's randomness."""
    return federation_of(seeded=False)


def with_plans(offer: Offer, **changes: Any) -> Offer:
    """An offer whose plans are others: `batch` is that of their steps."""

    def changed(form: Mapping[str, Any]) -> dict[str, Any]:
        batch = {"cohort": changes["batch"]} if "batch" in changes else {}
        own = {name: value for name, value in changes.items() if name != "batch"}
        return {**form, "schedule": [{**step, **batch} for step in form["schedule"]], **own}

    return offer.replaced(plans={name: changed(form) for name, form in offer.plans.items()})


def calibrated(offer: Offer, epsilon: float) -> Offer:
    """An offer of the same rounds, each with noise for another budget."""
    budget = Budget(epsilon=epsilon, delta=1e-5)
    plans = {name: forms.to_json(offer.plan_of(name).config.calibrate(budget)) for name in offer.parties}
    return offer.replaced(plans=plans)


def answer_of(frame: bytes, offer: Offer, number: int, place: int = 0) -> Answer:
    name = offer.parties[place]
    where = Place(plan=offer.fingerprint, round=number, party=name)
    return read_silo(frame, place=where, size=offer.size, key=KEYS[name].public_key())


def test_a_silo_accepts_answers_and_gives_the_same_bytes_again(earnest: Any, tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path, earnest)
    offer, party = hospitals.offer, hospitals.party(0)
    _, place, _, _ = opened(
        party.answer(offer.to_bytes(SERVER)), ("acceptance",), key=KEYS["silo-1"].public_key(), most=0
    )
    assert (place.plan, place.party) == (offer.fingerprint, "silo-1")
    first = party.answer(asked(offer, 0))
    assert party.answer(asked(offer, 0)) == first
    hospitals.kill(0)
    assert hospitals.party(0).answer(offer.to_bytes(SERVER))
    assert hospitals.party(0).answer(asked(offer, 0)) == first
    found = answer_of(first, offer, 0)
    assert found.update is not None
    assert hospitals.charged(0) == [0]
    path = tmp_path / "silo-1" / LEDGER
    assert verify(path)["intact"]
    assert verify(path)["epsilon"] == found.epsilon
    assert all(each.stat().st_mode & 0o077 == 0 for each in (tmp_path / "silo-1").rglob("*"))


def test_a_trial_takes_nothing_up(hospitals: Hospitals) -> None:
    offer, party = hospitals.offer, hospitals.party(0)
    assert party.answer(offer.to_bytes(SERVER, kind="trial")) == party.answer(offer.to_bytes(SERVER, kind="trial"))
    with Ledger.read(hospitals.folder / "silo-1" / LEDGER) as ledger:
        assert not ledger.reservations()
    with pytest.raises(SpecificationRefused, match="not accepted"):
        party.answer(asked(offer, 0))
    assert party.answer(offer.to_bytes(SERVER))
    assert party.answer(offer.to_bytes(SERVER, kind="trial"))  # of a plan that has its room
    absurd = offer.replaced(columns=(), size=offer.size + 1)
    with pytest.raises(SpecificationRefused, match="weights"):
        party.answer(absurd.to_bytes(SERVER, kind="trial"))


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"fields": ["age"]}, "does not say which fields"),
        ({"least_noise": 50.0}, "less than this party asks for"),
        ({"budget": Budget(epsilon=7.9, delta=1e-5)}, "allows at most 7.9"),
        ({"budget": Budget(epsilon=8.0, delta=1e-6)}, "at 1e-06"),
    ],
    ids=["fields", "noise", "epsilon", "delta"],
)
def test_what_the_policy_does_not_allow_is_refused(
    policy: dict[str, Any], words: str, seeded: Any, tmp_path: Path
) -> None:
    hospitals = Hospitals(tmp_path, seeded, PartyPolicy(**{"budget": BUDGET} | policy))
    with pytest.raises((SpecificationRefused, BudgetExceeded), match=words):
        hospitals.party(0).answer(hospitals.offer.to_bytes(SERVER))
    [noted] = given(hospitals.party(0).folder)["refused"]
    assert words in noted["why"]
    assert noted["plan"] == hospitals.offer.fingerprint
    assert hospitals.charged(0) == []
    with pytest.raises((SpecificationRefused, DataError)):
        hospitals.party(0).answer(asked(hospitals.offer, 0))


def test_records_that_do_not_fit_are_refused_before_there_is_a_ledger(
    hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer, party = hospitals.offer, hospitals.party(0)
    whole = hospitals.own(0)

    def unfit(_: object) -> OwnRecords:
        raise DataError("the column dose is missing")

    def failing(_: object) -> OwnRecords:
        class Broken:
            size, held, third_party = whole.engine.size, whole.engine.held, ""

            def rehearsal(self, records: int) -> "Broken":
                return self

            def train(self, *_: object, **__: object) -> None:
                raise RuntimeError("no memory")

        return OwnRecords(engine=Broken(), stated=500, classes=10)  # type: ignore[arg-type]  # it is broken

    for learner, error, words in ((unfit, DataError, "dose"), (failing, RehearsalFailed, "no memory")):
        monkeypatch.setattr(party, "_learner", learner)
        with pytest.raises(error, match=words):
            party.answer(offer.to_bytes(SERVER))
    monkeypatch.undo()
    double = with_plans(offer, members=1000, batch=1000.0)
    with pytest.raises(SpecificationRefused, match="1000 records, and this silo states 500"):
        party.answer(double.to_bytes(SERVER))
    monkeypatch.setattr(party, "_learner", lambda _: replace(whole, stated=1000))
    with pytest.raises(ConfigError, match="fewer or more than that allows"):
        party.answer(double.to_bytes(SERVER))
    monkeypatch.undo()
    with pytest.raises(SpecificationRefused, match="9 classes, and this silo states 10"):
        party.answer(offer.replaced(classes=9).to_bytes(SERVER))
    with pytest.raises(SpecificationRefused, match="651 weights"):
        party.answer(offer.replaced(size=offer.size + 1).to_bytes(SERVER))
    assert not (hospitals.folder / "silo-1" / LEDGER).exists()
    assert party.answer(offer.to_bytes(SERVER))


def test_all_plans_are_charged_to_one_ledger_and_each_to_its_own_budget(earnest: Any, tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path, earnest, PartyPolicy(budget=Budget(epsilon=12.0, delta=1e-5)))
    party, first = hospitals.party(0), hospitals.offer
    halves = [calibrated(first, epsilon) for epsilon in (7.0, 6.0)]
    for offer in halves:
        party.answer(offer.to_bytes(SERVER))
    epsilons = []
    for number in range(first.rounds):
        for offer in halves:
            found = answer_of(party.answer(asked(offer, number)), offer, number)
            assert found.update is not None
            epsilons.append(found.epsilon)
    assert epsilons == sorted(epsilons)
    assert 7.0 < epsilons[-1] <= 12.0
    with Ledger.read(tmp_path / "silo-1" / LEDGER) as ledger:
        notes = [entry.content()["note"] for entry in ledger.entries() if entry.kind == "charge"]
    for offer in halves:
        said = {note["noise_multiplier"] for note in notes if note["plan"] == offer.fingerprint}
        assert said == {offer.plan_of("silo-1").noise_multiplier}
    assert {note["plan"] for note in notes} == {offer.fingerprint for offer in halves}
    with pytest.raises(BudgetExceeded):
        party.answer(first.to_bytes(SERVER))


def test_a_ledger_without_room_for_the_whole_plan_is_refused_at_the_offer_and_pays_for_nothing(
    earnest: Any, tmp_path: Path
) -> None:
    hospitals = Hospitals(tmp_path, earnest, PartyPolicy(budget=Budget(epsilon=9.0, delta=1e-5)))
    party, offer = hospitals.party(0), calibrated(hospitals.offer, 5.0)
    party.answer(offer.to_bytes(SERVER))
    assert answer_of(party.answer(asked(offer, 0)), offer, 0).update is not None
    kinds: tuple[OfferKind, ...] = ("trial", "offer")
    for kind in kinds:
        with pytest.raises(BudgetExceeded):
            party.answer(hospitals.offer.to_bytes(SERVER, kind=kind))
    with pytest.raises(SpecificationRefused, match="not accepted"):
        party.answer(asked(hospitals.offer, 0))
    with Ledger.read(tmp_path / "silo-1" / LEDGER) as ledger:
        assert [each.label for each in ledger.reservations()] == [offer.fingerprint]
    assert hospitals.charged(0) == [0]
    less = calibrated(hospitals.offer, 4.0)  # the control: there is room for a smaller plan
    assert party.answer(less.to_bytes(SERVER))


def test_what_a_plan_has_left_after_the_last_question_is_for_others(earnest: Any, tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path, earnest)
    offer, party = hospitals.offer, hospitals.party(0)
    party.answer(offer.to_bytes(SERVER))
    party.answer(asked(offer, 0))
    other = calibrated(offer, 3.0)
    with pytest.raises(BudgetExceeded):
        party.answer(other.to_bytes(SERVER))
    party.answer(asked(offer, offer.rounds))
    assert party.answer(other.to_bytes(SERVER))


def test_a_plan_with_noise_of_its_own_stops_at_its_budget_not_at_the_ledgers(tmp_path: Path) -> None:
    federation = federation_of("privacy.noise_multiplier=2.2", "privacy.rounds=6", "privacy.epsilon=3", seeded=False)
    hospitals = Hospitals(tmp_path, federation, PartyPolicy(budget=Budget(epsilon=50.0, delta=1e-5)))
    offer, party = hospitals.offer, hospitals.party(0)
    party.answer(offer.to_bytes(SERVER))
    found = [answer_of(party.answer(asked(offer, number)), offer, number) for number in range(6)]
    assert found[0].absence is None
    assert found[-1].absence == "budget spent"
    assert max(answer.epsilon for answer in found) <= 3.0
    assert "budget spent" in given(tmp_path / "silo-1")["refused"][-1]["why"]


def test_a_day_has_its_limit_and_the_next_day_its_own(tmp_path: Path) -> None:
    federation = federation_of("privacy.noise_multiplier=1.5", seeded=False)
    hospitals = Hospitals(tmp_path, federation, PartyPolicy(budget=BUDGET, daily_epsilon=6.0))
    offer, party = hospitals.offer, hospitals.party(0)
    party.answer(offer.to_bytes(SERVER))
    assert answer_of(party.answer(asked(offer, 0)), offer, 0).absence is None
    second = answer_of(party.answer(asked(offer, 1)), offer, 1)
    assert second.absence == "daily limit"
    hospitals.today = date(2026, 2, 1)
    assert answer_of(party.answer(asked(offer, 1)), offer, 1).absence == "daily limit", "it was answered"
    hospitals.today = date(2026, 3, 2)
    assert answer_of(party.answer(asked(offer, 2)), offer, 2).absence is None
    assert hospitals.charged(0) == [0, 2]
    with Ledger.read(tmp_path / "silo-1" / LEDGER) as ledger:
        days = [entry.content()["note"]["day"] for entry in ledger.entries() if entry.kind == "charge"]
    assert days == ["2026-03-01", "2026-03-02"]


class Killed(BaseException): ...


def killed(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.parametrize("randomness", ["earnest", "seeded"])
def test_killed_between_charge_and_answer_a_round_is_lost_in_earnest_and_repeated_under_a_seed(
    randomness: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = request.getfixturevalue(randomness)
    whole, cut = (Hospitals(tmp_path / name, federation) for name in ("whole", "cut"))
    offer = whole.offer
    for hospitals in (whole, cut):
        hospitals.party(0).answer(offer.to_bytes(SERVER))
    expected = whole.party(0).answer(asked(offer, 0))
    with monkeypatch.context() as patched:
        patched.setattr(type(federation.engines[0]), "train", killed)
        patched.setattr("incrowd.algorithms.silos.rehearse", lambda *_: None)
        with pytest.raises(Killed):
            cut.party(0).answer(asked(offer, 0))
    cut.kill(0)
    assert cut.charged(0) == [0]
    found = cut.party(0).answer(asked(offer, 0))
    if randomness == "seeded":
        assert found == expected
    else:
        assert answer_of(found, offer, 0).absence == "round lost"
        assert cut.party(0).answer(asked(offer, 0)) == found
    assert answer_of(cut.party(0).answer(asked(offer, 1)), offer, 1).update is not None
    assert cut.charged(0) == [0, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "incrowd silo offer 2"}, "this incrowd reads"),
        ({"plans": {"silo-1": {}}}, "plan and a name"),
        ({"plans": {name: {} for name in ("silo-1", "silo-2", "silo-3")}}, "for the unit None"),
        ({"plans": {}}, "plans"),
        ({"plans": "all"}, "plans"),
        ({"answers": []}, "answers"),
        ({"size": 0}, "size"),
        ({"classes": -1}, "classes"),
        ({"classes": None}, "labels of None classes"),
        ({"rounds": 2}, "plan at most as many for each"),
        ({"rounds": "3"}, "rounds"),
        ({"parties": ["silo-1", "silo-1", "silo-3"]}, "name of its own"),
        ({"parties": ["silo-1"]}, "name of its own"),
        ({"parties": ["north", "south", "east"]}, "name of its own"),
        ({"columns": ["age"]}, "fingerprint"),
        ({"plan": {"format": "incrowd silo plan 1"}}, "this incrowd reads"),
        ({"plan": {"unit": "client"}}, "for the unit 'client'"),
        ({"plan": {"noise_by": "server", "steps": 1}}, "one for the records of each"),
        ({"plan": {"members": "500"}}, "members"),
        ({"plan": {"steps": 10**9}}, "1000000000 steps a round are more"),
        ({"plan": {"steps": "2"}}, "2 steps a round are more"),
        ({"plan": {"budget": {"epsilon": 0.1, "delta": 1e-5}}}, "these rounds cost"),
    ],
)
def test_what_makes_no_offer_is_refused(change: dict[str, Any], words: str, hospitals: Hospitals) -> None:
    form, given = hospitals.offer.to_json(), dict(change)
    form["plans"]["silo-1"] |= given.pop("plan", {})
    form |= given
    signed = hospitals.offer.fingerprint if words == "fingerprint" else forms.fingerprint(form)
    where = Place(plan=signed, round=0, party="")
    with pytest.raises(IncrowdError, match=words):
        hospitals.party(0).answer(sealed("offer", where, {"offer": form}, b"", key=SERVER))
