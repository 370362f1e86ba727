"""A malicious server's offers: they would cost a party memory or time, name its files or code, understate a price."""

import contextlib
import json
import math
import tracemalloc
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent

from incrowd import _extensions
from incrowd.errors import BudgetExceeded, ConfigError, IncrowdError, LedgerMismatch, SpecificationRefused
from incrowd.federation import Federation
from incrowd.learning.features import UnitNorm
from incrowd.learning.features.feature_map import Values
from incrowd.learning.features.table_rows import TableRows
from incrowd.learning.local_algorithms import Sgd
from incrowd.parties.frames import Place, Request, _statement, sealed
from incrowd.parties.guard import LEDGER, MEMORY, given
from incrowd.parties.keys import question_key
from incrowd.parties.network import offer_of
from incrowd.parties.offer import Offer, OfferKind
from incrowd.parties.participant import Participant
from incrowd.parties.policy import PartyPolicy
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.mechanism.clipping import Clip, ElementwiseClip, MedianClip, PerLayerClip, ThirdPartyClip
from incrowd.privacy.plan import forms
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import ThirdPartySampling
from incrowd.runs.config import Config
from incrowd.runs.work import assemble
from incrowd.types import register
from tests.parties import silo_parties
from tests.parties.members import ALLOW, ROWS, Hospitals, MemberLine, settings_text
from tests.parties.parties import MODEL, ROOMY, SERVER, Made, asked, offer_for, plan_of, request
from tests.parties.test_silo_party import with_plans

pytestmark = [pytest.mark.watched, pytest.mark.usefixtures("one_thread")]

Form = dict[str, Any]
KINDS: tuple[OfferKind, ...] = ("offer", "trial")


def signed(form: Form) -> bytes:
    """An offer as a server signs it that has not looked at it either."""
    try:
        plan = forms.fingerprint(form)
    except ValueError:  # canonical JSON has no such numbers
        plan = "p" * 64
    text = json.dumps({"offer": form, "kind": "offer", "plan": plan, "round": 0, "party": ""}).encode()
    front = b"incrowd1" + len(text).to_bytes(4, "little") + bytes(8) + text
    return front + SERVER.sign(_statement(front))


HONEST = offer_for(plan_of()).to_json()
TURNS = PlanConfig.in_turns(clients=3, rounds=10, groups=3).calibrate(Budget(epsilon=8.0, delta=1e-5))


def honest(**changes: Any) -> Form:
    """An offer, of which something is changed."""
    return deepcopy(HONEST) | changes


def with_plan(**changes: Any) -> Form:
    """An offer whose plan says something else."""
    form = honest()
    form["plans"][""] |= changes
    return form


def poisson(**changes: Any) -> Form:
    """An offer whose clients are drawn, which takes longest to price."""
    drawn = {"sampling": "poisson", "members": 3, "budget": {"epsilon": 1e6, "delta": 1e-5}}
    return with_plan(**drawn | changes)


def steps(count: int, rounds: int = 1) -> list[Form]:
    return [{"rounds": rounds, "cohort": 1.0, "noise_multiplier": 1 + i / 1e6} for i in range(count)]


def correlated(**rest: Any) -> Form:
    """An offer whose clients take turns, whose noise is correlated over the rounds."""
    return honest(plans={"": forms.to_json(TURNS) | rest})


LAYERS = {"kind": "PerLayerClip", "clip_norms": [1.0] * 10**5, "parts": [1]}
EXPENSIVE: dict[str, tuple[Callable[[], Form], str]] = {
    "60,000 kinds of rounds": (lambda: poisson(schedule=steps(60_000)), "list of 60000"),
    "33 kinds of rounds": (lambda: poisson(schedule=steps(33)), "33 kinds of rounds are more"),
    "a million rounds": (lambda: poisson(schedule=steps(1, rounds=10**6)), "1000000 rounds are more"),
    "a million correlated rounds": (lambda: correlated(schedule=steps(1, rounds=10**6)), "1000000 rounds are more"),
    "a budget beyond the owner's": (lambda: poisson(budget={"epsilon": 1e12, "delta": 1e-5}), "allows at most 1e"),
    "many layers": (lambda: poisson(clip=LAYERS), "list of 100000"),
    "many accountants": (lambda: poisson(accountants=["RDP"] * 10**5), "list of 100000"),
    "accountants in a list": (lambda: with_plan(accountants=[["RDP"]]), "no server may name"),
    "accountants by number": (lambda: with_plan(accountants=7), "no server may name"),
    "clients in 4000 digits": (lambda: poisson(members=10**4000), "numbers that no plan has"),
    "noise in 400 digits": (lambda: poisson(budget={"epsilon": 10**400}), "numbers that no plan has"),
    "infinite noise": (lambda: poisson(schedule=steps(1), budget={"epsilon": math.inf}), "numbers that no plan has"),
    "noise that is no number": (lambda: poisson(budget={"delta": math.nan}), "numbers that no plan has"),
    "rounds by name": (lambda: poisson(schedule=[{"rounds": "1"}]), "does not say how many"),
    "a schedule of nothing": (lambda: poisson(schedule=[None]), "does not say how many"),
    "a plan without rounds": (lambda: poisson(schedule=7), "does not say how many"),
    "no plan": (lambda: honest(plans={"": None}), "plans"),
    "weights by name": (lambda: honest(size="8"), "size"),
    "weights without end": (lambda: honest(size=10**4000), "numbers that no plan has"),
    "classes without end": (lambda: honest(classes=10**4000), "numbers that no plan has"),
}


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that were priced; none is in the end, for some take a minute and a gigabyte."""
    found = list[Plan]()

    def failing(plan: Plan) -> None:
        found.append(plan)
        raise OverflowError

    monkeypatch.setattr(Plan, "_priced", failing)
    return found


@pytest.mark.parametrize("kind", EXPENSIVE)
def test_an_offer_that_takes_long_to_price_is_refused_before_that_and_noted(
    kind: str, made: Made, priced: list[Plan]
) -> None:
    form, words = EXPENSIVE[kind]
    party, frame = made.start(), signed(form())
    tracemalloc.start()
    with pytest.raises((SpecificationRefused, BudgetExceeded), match=words):
        party.answer(frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * 2**20
    assert not priced
    assert not (made.folder / LEDGER).exists()
    [refused] = given(made.folder)["refused"]
    assert refused["round"] is None


def test_control_who_allows_more_gets_as_far_as_the_price(made: Made, priced: list[Plan]) -> None:
    """It is the policy that keeps the party from pricing them, and nothing else."""
    made.policy = PartyPolicy(budget=ROOMY, most_steps=33)
    with pytest.raises(SpecificationRefused, match="numbers that a plan can have"):
        made.start().answer(signed(poisson(schedule=steps(33)) | {"rounds": 33}))
    assert priced


@pytest.mark.parametrize("noise", [1e-300, 2.0**53])
@pytest.mark.parametrize("cohort", [1e-300, 1e-9, 3.0])
def test_numbers_that_no_plan_has_are_an_error_of_ours(noise: float, cohort: float, made: Made) -> None:
    plan = poisson(schedule=[{"rounds": 1, "cohort": cohort, "noise_multiplier": noise}])
    with pytest.raises(IncrowdError):  # at least for its fingerprint
        made.start().answer(signed(plan))
    assert len(given(made.folder)["refused"]) == 1


@pytest.fixture(scope="module")
def silos() -> Any:
    return silo_parties.federation_of(seeded=False)


@pytest.mark.parametrize(
    ("kind", "head", "noted"), [("request", {"clip": {}, "size": 0}, 0), ("list", {"label": "\ud800"}, 1)]
)
def test_what_is_no_text_is_an_error_of_ours_too(kind: str, head: Form, noted: int, made: Made) -> None:
    party = made.start()
    place = Place(plan="\ud800" if kind == "request" else "0", round=0, party="")
    with pytest.raises(IncrowdError):
        party.answer(sealed(kind, place, head, b"", key=SERVER))
    assert len(given(made.folder, begun=False)["refused"]) == noted  # a frame that is none comes from nobody
    party.close()


STRANGE: dict[str, Callable[[float], bytes]] = {
    "a setting": lambda number: signed(honest(settings={"model": {"kind": "linear"}, "local": {"momentum": number}})),
    "a card": lambda number: signed(honest(roster=[{"name": "north", "key": number}])),
}


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("where", STRANGE)
def test_what_canonical_json_cannot_say_is_refused_and_noted(where: str, number: float, made: Made) -> None:
    party = made.start()
    with pytest.raises(SpecificationRefused, match="numbers that a plan can have"):
        party.answer(STRANGE[where](number))
    [refused] = given(made.folder, begun=False)["refused"]
    assert refused["round"] is None
    assert party.answer(STRANGE[where](0.5))  # who says the same in numbers is heard


CHEAP = {"budget": {"epsilon": 0.1, "delta": 1e-5}}
"""A plan that says that it costs less than it does."""
LARGE = plan_of(budget=Budget(epsilon=1e3, delta=1e-3))
NOBODY: list[Form] = [{"rounds": 1, "cohort": 1e-300, "noise_multiplier": 1.5}]
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "a field": (lambda: offer_for(LARGE, columns=("name",)).to_bytes(SERVER), "the field name"),
    "another's": (lambda: offer_for(LARGE, parties=("west", "east", "south")).to_bytes(SERVER), "names no party north"),
    "weights": (lambda: offer_for(LARGE).replaced(size=9).to_bytes(SERVER), "9 weights"),
    "less noise than it says": (lambda: signed(with_plan(**CHEAP)), "these rounds cost"),
    "no price": (lambda: signed(with_plan(accountants=[], **CHEAP)), "numbers that a plan can have"),
    "a cohort of nobody": (lambda: signed(poisson(schedule=NOBODY, **CHEAP)), "numbers that a plan can have"),
    "no room": (lambda: offer_for(plan_of(noise=0.01)).to_bytes(SERVER), "allows at most 1000"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_offer_that_is_refused_is_shown_to_the_owner(kind: str, made: Made) -> None:
    frame, words = REFUSED[kind]
    made.policy = PartyPolicy(budget=replace(ROOMY, epsilon=1e3), fields=("age", "dose"))
    party = made.start()
    with pytest.raises((SpecificationRefused, BudgetExceeded, ConfigError)):
        party.answer(frame())
    found = given(made.folder)
    [refused] = found["refused"]
    assert words in refused["why"]
    assert (refused["round"], refused["server"]) == (None, party.identity.server_name)
    assert found["events"] == []
    assert not (made.folder / LEDGER).exists()


def test_however_much_is_said_little_of_it_is_remembered(made: Made) -> None:
    party, offer = made.start(), offer_for(plan_of())
    party.answer(offer.to_bytes(SERVER))
    long = replace(request(offer, 0), place=Place(plan="p" * 10**6, round=0, party=""))
    for frame in (long, *[replace(request(offer, 0), clip={"kind": "x" * 10**6})] * 3):
        with pytest.raises(IncrowdError):
            party.answer(frame.to_bytes(SERVER))
    assert len(given(made.folder)["refused"]) == 3
    for number in range(40):
        place, head = Place(plan="0" * 64, round=number, party=""), {"label": f"{number:04}" + "x" * 60_000}
        with pytest.raises(SpecificationRefused, match="not accepted"):
            party.answer(sealed("list", place, head | {"question": "", "parties": {}}, b"", key=SERVER))
    party.close()
    assert (made.folder / MEMORY).stat().st_size < 140_000


UNDOABLE: dict[str, Clip | MedianClip] = {
    "a median": MedianClip(),
    "a limit for each of fewer numbers": ElementwiseClip(limit=0.5, size=MODEL.size - 1),
    "a layer of fewer numbers": PerLayerClip(clip_norms=(0.5,), parts=(MODEL.size - 1,)),
    "layers of another model": PerLayerClip(clip_norms=(0.1, 5.0), parts=(3, MODEL.size - 3)),
}


@pytest.mark.parametrize("kind", UNDOABLE)
def test_an_offer_that_can_be_paid_for_and_not_done_costs_nothing(kind: str, made: Made) -> None:
    """The first layer of another model may get what all of this one's would."""
    party = made.start()
    with pytest.raises(SpecificationRefused, match=r"cannot be done|for layers of"):
        party.answer(offer_for(plan_of(clip=UNDOABLE[kind])).to_bytes(SERVER))
    assert not (made.folder / LEDGER).exists()
    for fits in (ElementwiseClip(limit=0.5, size=MODEL.size), PerLayerClip(clip_norms=(5.0,), parts=MODEL.parts)):
        control = offer_for(plan_of(clip=fits))
        party.answer(control.to_bytes(SERVER))
        assert party.answer(asked(control, 0, clip=fits))


@pytest.mark.parametrize("again", [False, True], ids=["at once", "in another life"])
@pytest.mark.parametrize(("first", "second"), [("party", "server"), ("server", "party")])
def test_a_plan_is_not_charged_at_the_prices_of_another_promise(
    first: str, second: str, again: bool, made: Made
) -> None:
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


@pytest.mark.parametrize("kind", KINDS)
def test_offers_for_other_numbers_of_records_do_not_tell_how_many_there_are(
    kind: OfferKind, silos: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silo of 500 records and one of 460 both state 500. Who offers plans for all numbers hears the same of both."""
    said = []
    for count in (500, 460):
        hospitals = silo_parties.Hospitals(tmp_path / str(count), silos)
        party, offer, own = hospitals.party(0), hospitals.offer, hospitals.own(0)
        learnt_from = replace(own, engine=own.engine.rehearsal(count))
        assert learnt_from.engine.held == count
        monkeypatch.setattr(party, "_learner", lambda _, own=learnt_from: own)
        replies: list[int | str] = []
        for records in (450, 459, 460, 461, 499, 500, 501, 511, 512, 555, 556):
            other = with_plans(offer, members=records, batch=float(records))
            try:
                replies.append(len(party.answer(other.to_bytes(silo_parties.SERVER, kind=kind))))
            except IncrowdError as error:
                replies.append(f"{type(error).__name__}: {error}")
        said.append(replies)
    assert said[0] == said[1]
    assert [isinstance(reply, int) for reply in said[0]].count(True) == 1


# What is settled beside the plan


@pytest.fixture
def party(hospitals: Hospitals) -> Iterator[Participant]:
    with contextlib.closing(hospitals.member("amber").open()) as party:
        yield party


def offer_with(hospitals: Hospitals, change: Callable[[dict[str, Any]], object] = len) -> Offer:
    """The honest offer, with settings that were changed."""
    federation = Federation.from_settings(hospitals.folder / "there.toml")
    assert isinstance(federation.settings, Config)
    offer = offer_of(assemble(federation.settings, given=federation.given, schedule=federation.schedule))
    settings = {name: dict(section) for name, section in offer.settings.items()}
    change(settings)
    return offer.replaced(settings=settings)


def reply(hospitals: Hospitals, party: Participant, offer: Offer, kind: OfferKind) -> bytes:
    return party.answer(offer.to_bytes(question_key(hospitals.folder / "server"), kind=kind))


FILES, CODE = "names files of this machine", "no server may name code"
BEYOND = r"more than|numbers that no"
REACHING: dict[str, tuple[str, dict[str, Any], str]] = {
    "a cache": ("features", {"name": "unit", "cache": "AIM"}, FILES),
    "a cache of nothing": ("features", {"name": "none", "cache": "AIM"}, FILES),
    "a folder of code": ("model", {"kind": "linear", "folder": "AIM"}, FILES),
    "a folder of an encoder": ("features", {"module": "a:b", "folder": "AIM"}, FILES),
    "weights of an encoder": ("features", {"module": "a:b", "weights": "AIM"}, FILES),
    "a folder of data": ("data", {"folder": "AIM"}, FILES),
    "a table": ("data", {"test_file": "AIM"}, FILES),
    "a function": ("features", {"module": "code_of_a_server:make"}, CODE),
    "wide layers": ("model", {"kind": "mlp", "hidden": [10**6, 10**6]}, BEYOND),
    "a wide layer": ("model", {"kind": "mlp", "hidden": [10**12]}, BEYOND),
    "many layers": ("model", {"kind": "mlp", "hidden": [1] * 100_000}, BEYOND),
    "passes without end": ("local", {"epochs": 10**12}, BEYOND),
    "passes of no number": ("local", {"epochs": "many"}, BEYOND),
    "batches without end": ("local", {"batches": 10**12, "batch_size": None}, BEYOND),
    "wide strides": ("features", {"name": "energies", "stride": 10**9}, BEYOND),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", REACHING)
def test_no_file_no_code_and_no_memory_or_time_of_the_party_s_is_used_for_a_server(
    way: str, kind: OfferKind, hospitals: Hospitals, party: Participant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers would take terabytes, or years, which this test has not."""
    aim, (section, changes, words) = hospitals.folder / "aim", REACHING[way]
    code = f"import pathlib\npathlib.Path({str(aim)!r}).touch()\ndef make(): ...\n"
    (hospitals.folder / "code_of_a_server.py").write_text(code)
    monkeypatch.syspath_prepend(str(hospitals.folder))
    named = {name: str(aim) if value == "AIM" else value for name, value in changes.items()}

    def change(settings: dict[str, Any]) -> None:
        settings[section] = (settings[section] if section in ("data", "local") else {}) | named

    offer = offer_with(hospitals, change)
    with pytest.raises(SpecificationRefused, match=words):
        reply(hospitals, party, offer, kind)
    assert not aim.exists()
    assert not (hospitals.folder / "amber" / LEDGER).exists()
    [refused] = given(hospitals.folder / "amber")["refused"]
    assert refused["round"] is None
    assert reply(hospitals, party, offer_with(hospitals), kind)  # the control: the honest offer


def test_trials_without_end_leave_nothing_behind(hospitals: Hospitals, party: Participant) -> None:
    def tried(rate: float) -> Offer:
        return offer_with(hospitals, lambda settings: settings["local"].update(learning_rate=rate))

    for number in range(5):
        assert reply(hospitals, party, tried(0.1 + number), "trial")
    assert len(party._parts) == 2
    question = request(tried(0.1), 0).to_bytes(question_key(hospitals.folder / "server"))
    with pytest.raises(SpecificationRefused, match="has not accepted"):
        party.answer(question)


@pytest.mark.parametrize(("most", "taken"), [(412, False), (413, True), (None, True)])
def test_features_of_more_numbers_than_it_allows_are_never_made(
    most: int | None, taken: bool, hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows would be kept as such: a hundred million rows of 65,536 buckets, say."""
    hospitals.state("amber", allow=ALLOW if most is None else f"{ALLOW}most_features = {most}\n")
    words = '[features]\nname = "table"\nbins = 205\n'
    (hospitals.folder / "there.toml").write_text(settings_text(here=False, more=words))
    line = MemberLine(hospitals, gone={"birch", "cedar"})
    made: list[int] = []
    applied = TableRows.__call__

    def counted(own: TableRows, rows: Values) -> Values:
        made.append(len(rows))
        return applied(own, rows)

    monkeypatch.setattr(TableRows, "__call__", counted)
    said = hospitals.server().try_over(line, Federation.from_settings(hospitals.folder / "there.toml"))["amber"]
    line.close()
    assert (said == "yes") is taken
    assert (sum(made) < ROWS) is not taken
    if not taken:
        assert f"features of 413 numbers are more than this party allows, {most}" in said


# Extensions that a party has for another federation


@pytest.fixture
def only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_extensions, "_REGISTERED", {})
    monkeypatch.setattr(_extensions, "_FIRST", {})


@pytest.mark.usefixtures("only_here")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("named", ["map", "algorithm"])
def test_no_extension_that_a_server_names_meets_examples(kind: OfferKind, named: str, hospitals: Hospitals) -> None:
    register("feature_maps", "mine", UnitNorm)
    register("local_algorithms", "mine", Sgd)
    features, local = {"features": {"name": "map", "map": "mine"}}, {"algorithm": "mine"}
    changes = (lambda its: its["local"].update(local)) if named == "algorithm" else (lambda its: its.update(features))
    offer, member = offer_with(hospitals, changes), hospitals.member("amber")
    refused = pytest.raises(SpecificationRefused, match=r"no server may name code|algorithms that this party allows")
    with contextlib.closing(member.open()) as party, refused:
        reply(hospitals, party, offer, kind)
    allow = member.file.allow.replaced(algorithms=("mine",))
    if named == "algorithm":  # the control: one that its owner allows
        with contextlib.closing(replace(member, file=member.file.replaced(allow=allow)).open()) as party:
            reply(hospitals, party, offer, kind)


class Likely:
    """A sampler of some package, which states how likely a client is drawn: incrowd does not verify that."""

    relation = NeighboringRelation.ADD_OR_REMOVE_ONE

    def sample(self, stream: Any, **_: Any) -> Any:
        raise NotImplementedError

    def event(self, noise_multiplier: float, **_: Any) -> Any:
        return PoissonSampledDpEvent(1e-6, GaussianDpEvent(noise_multiplier))


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "clip": lambda: {"clip": ThirdPartyClip(name="mine", clip_norm=1.0)},
    "sampler": lambda: {"sampling": ThirdPartySampling(name="mine")},
    "none": dict,
}


@pytest.mark.usefixtures("only_here")
@pytest.mark.parametrize("named", PARTS)
def test_no_extension_that_a_server_names_in_a_plan_runs_at_a_party(
    named: str, hospitals: Hospitals, party: Participant
) -> None:
    rows: list[tuple[int, ...]] = []

    def clip(contributions: Any, clip_norm: float) -> Any:
        rows.append(contributions.shape)
        return contributions * min(1.0, clip_norm / max(float(np.linalg.norm(contributions)), 1e-9))

    _extensions.register("clips", "mine", clip)
    _extensions.register("samplers", "mine", Likely())
    plain = offer_with(hospitals)
    plan = replace(plain.plan.config, **PARTS[named]()).plan(plain.plan.budget)
    offer = Offer.of_plan(plan, size=plain.size, columns=plain.columns, settings=plain.settings, parties=plain.parties)
    rows.clear()

    def answered() -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if named == "none" else pytest.raises(SpecificationRefused)

    with answered():
        assert reply(hospitals, party, offer, "offer")
    form = forms.to_json(forms.RoundForm(plan=offer.fingerprint, round=0, clip=plan.config.clip))["clip"]
    asked = Request(
        place=Place(plan=offer.fingerprint, round=0, party=""), weights=np.zeros(offer.weights, np.float32), clip=form
    )
    with answered():
        party.answer(asked.to_bytes(question_key(hospitals.folder / "server")))
    assert rows == []
