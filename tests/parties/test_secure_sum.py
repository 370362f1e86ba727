"""Sums of masked parts: exact, with the planned noise, the same after a crash, and lost with a silent party."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd.errors import BudgetExceeded, ConfigError, DataError, SpecificationRefused
from incrowd.parties.roster import MOST_PARTIES, Card, Roster, digest
from incrowd.parties.secure_sum import Member, SumPlan, SumServer
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Everyone, constant
from incrowd.privacy.release import PrivateRun
from tests.parties.crew import Crew, content_of, key_of, plan_of, question, signed
from tests.statistics import NORMAL_MOMENTS, rejects_wrong_scale

pytestmark = pytest.mark.filterwarnings("ignore::incrowd.privacy.plan.plan.PrivacyWarning")
ROSTER = Roster(tuple(Card.of(name, key_of(name)) for name in ("south", "north", "east")))


@pytest.mark.parametrize("parties", [3, 10, pytest.param(50, marks=pytest.mark.slow)])
def test_masks_cancel_and_the_sum_is_that_of_a_simulation_integer_for_integer(tmp_path: Path, parties: int) -> None:
    crew = Crew(tmp_path, parties=parties, simulated=True, size=300)
    plan = crew.plan.plan
    run = PrivateRun(
        plan, ledger=Ledger.in_memory(budget=plan.budget, relation=plan.relation), randomness=crew.randomness, size=300
    )
    for number, names in enumerate((crew.names, crew.names[1:], crew.names)):
        content_of = run.round(number)
        content_of.listing(len(names))
        for name in names:
            content_of.add(crew.part(name, number).values, clients=[crew.names.index(name)])
        masked = crew.server.total(number, crew.answers(number, names))
        simulated = content_of.release()
        np.testing.assert_array_equal(masked.steps, simulated.total.steps)
        assert masked.step == simulated.total.step


def test_a_sum_has_the_noise_that_its_list_was_planned_to_have(tmp_path: Path) -> None:
    crew = Crew(tmp_path, parties=5, colluders=2, size=60_000)
    for number, names in enumerate((crew.names, crew.names[:4])):
        found = crew.server.total(number, crew.answers(number, names)).values
        true = np.sum([crew.part(name, number).values for name in names], axis=0)
        std = crew.plan.noise(number).released_std(len(names))
        assert rejects_wrong_scale(NORMAL_MOMENTS, (found - true) / std)


def test_one_answer_and_sums_of_some_look_like_fair_words(tmp_path: Path) -> None:
    crew = Crew(tmp_path, size=50_000)
    answers = crew.answers(0)
    words = [np.frombuffer(frame[-64 - 100_000 : -64], np.uint16) for frame in answers.values()]
    everything = np.sum(words, axis=0, dtype=np.uint16)

    def odd(each: Any) -> float:
        counts = np.bincount(each >> 8, minlength=256)
        return float(((counts - len(each) / 256) ** 2 / (len(each) / 256)).sum())

    for masked in (words[0], np.sum(words[:4], axis=0, dtype=np.uint16)):
        assert odd(masked) < 420  # a chi-square number of 255 degrees passes this once in 10^9 times
    assert odd(everything) > 10_000  # the control: the whole sum is small numbers


def test_asked_again_a_party_gives_the_same_bytes_and_charges_nothing(tmp_path: Path) -> None:
    crew = Crew(tmp_path)
    listed = crew.server.listed(0, crew.ready(0), question=question())
    first = {name: crew.answer(name, 0, listed) for name in crew.names}
    crew.members = {name: crew.member(name) for name in crew.names}  # new processes
    assert {name: crew.answer(name, 0, listed) for name in crew.names} == first
    assert crew.hellos == {name: member.hello() for name, member in crew.members.items()}
    assert crew.sealed == {name: member.seal(crew.hellos) for name, member in crew.members.items()}
    for member in crew.members.values():
        member.agree(crew.hellos, crew.sealed)
    assert {run.ledger.charges() for run in crew.runs.values()} == {(1, 0)}
    crew.server.total(1, crew.answers(1))


def test_without_keys_there_is_no_answer(tmp_path: Path) -> None:
    crew = Crew(tmp_path, agreed=False)
    with pytest.raises(SpecificationRefused, match="agree on them first"):
        crew.answer("party 0", 0, crew.listed(0))
    assert crew.runs["party 0"].ledger.charges() == (0, 0)


def test_a_silo_s_batches_are_secret_coins_of_its_own(tmp_path: Path) -> None:
    run = Crew(tmp_path, simulated=True, size=10).runs["party 0"]
    one, same, other, later = (
        run.batches(number, place=place).bits(4).tolist() for number, place in ((0, 0), (0, 0), (0, 1), (1, 0))
    )
    assert one == same
    assert len({tuple(each) for each in (one, other, later)}) == 3


def test_a_silent_party_loses_the_round_and_the_next_one_goes_on(tmp_path: Path) -> None:
    crew = Crew(tmp_path)
    answers = crew.answers(0)
    del answers["party 3"]
    with pytest.raises(DataError, match=r"the round is lost.*party 3"):
        crew.server.total(0, answers)
    there = [name for name in crew.names if name != "party 3"]
    crew.server.total(1, crew.answers(1, there))
    assert crew.runs["party 3"].ledger.charges() == (1, 0)
    crew.server.total(2, crew.answers(2))  # it is back, and the round that passed without it cost it nothing
    charged = {name: run.ledger.charges()[0] for name, run in crew.runs.items()}
    assert charged == dict.fromkeys(there, 3) | {"party 3": 2}


def test_masked_zeros_show_whether_keys_agree_before_anything_is_paid(tmp_path: Path) -> None:
    crew = Crew(tmp_path)
    crew.server.check_zeros({name: member.zeros() for name, member in crew.members.items()})
    assert {run.ledger.charges() for run in crew.runs.values()} == {(0, 0)}
    trials = {name: member.zeros() for name, member in crew.members.items()}
    with pytest.raises(DataError, match="do not add up to zeros"):
        crew.server.check_zeros({name: trials[name] for name in crew.names[:4]})
    crew.answers(0)
    with pytest.raises(SpecificationRefused, match="rounds have begun"):
        crew.members["party 1"].zeros()


def test_a_party_without_room_answers_nothing_and_keeps_its_keys(tmp_path: Path) -> None:
    crew = Crew(tmp_path)
    broke = Ledger.in_memory(budget=Budget(epsilon=0.1, delta=1e-5), relation=crew.plan.plan.relation)
    crew.runs["party 0"].ledger = broke
    with pytest.raises(BudgetExceeded):
        crew.answer("party 0", 0, crew.listed(0))
    assert broke.charges() == (0, 0)


def test_a_party_that_lost_its_round_between_charge_and_answer_goes_on_with_the_next(tmp_path: Path) -> None:
    crew = Crew(tmp_path)
    share = crew.plan.noise(0).share(5)
    crew.runs["party 2"].share(0, share)  # and then it was killed
    with pytest.raises(ConfigError, match="paid for, and lost"):
        crew.answer("party 2", 0, crew.listed(0))
    crew.server.total(1, crew.answers(1))


def test_a_lie_beyond_what_clipped_parts_can_be_is_noticed(tmp_path: Path) -> None:
    crew = Crew(tmp_path, size=2000)
    answers = crew.answers(0)
    honest = answers["party 0"]
    words = np.frombuffer(honest[-64 - 4000 : -64], np.uint16) + np.uint16(40)
    head, _ = content_of("masked", honest, key=key_of("party 0").public_key(), most=4000)
    answers["party 0"] = signed("masked", head, words.astype(np.uint16).tobytes(), key=key_of("party 0"))
    with pytest.raises(DataError, match="longer than clipped parts"):
        crew.server.total(0, answers)
    answers["party 0"] = signed("masked", head | {"list": "another"}, honest[-64 - 4000 : -64], key=key_of("party 0"))
    with pytest.raises(DataError, match="party 0 answered another list"):
        crew.server.total(0, answers)
    crew.server.total(0, {**answers, "party 0": honest})


def test_a_server_lists_once_and_only_whoever_is_ready_for_its_question(tmp_path: Path) -> None:
    crew = Crew(tmp_path)
    ready = crew.ready(0)
    first = crew.server.listed(0, ready, question=question())
    assert crew.server.listed(0, ready, question=question()) == first
    with pytest.raises(ConfigError, match="has its list already"):
        crew.server.listed(0, crew.ready(0, crew.names[:4]), question=question())
    for number, asked in ((1, "others"), (0, "weights")):
        with pytest.raises(DataError, match=r"ready for another question|of another round"):
            crew.server.listed(1, crew.ready(number, asked=asked), question=question())


def test_plans_that_do_not_fit_the_roster_are_refused(tmp_path: Path) -> None:
    cards = tuple(Card.of(f"p{each}", key_of(f"p{each}")) for each in range(4))
    with pytest.raises(ConfigError, match="the roster has 4"):
        SumPlan(plan=plan_of(5), roster=Roster(cards), size=3)
    config = PlanConfig(
        members=4, schedule=constant(rounds=1, cohort=4), sampling=Everyone, clip=FixedClip(clip_norm=1.0)
    )
    with pytest.raises(ConfigError, match="give a plan of"):
        SumPlan(plan=config.calibrate(Budget(epsilon=1.0, delta=1e-5)), roster=Roster(cards), size=3)
    server = SumServer(SumPlan(plan=plan_of(4), roster=Roster(cards), size=3), key=key_of("the server"))
    terms: dict[str, Any] = {"name": "p0", "server": key_of("the server").public_key()}
    with pytest.raises(SpecificationRefused, match="fewer than the 2"):
        Member(tmp_path, server.plan, key=key_of("p0"), least_colluders=2, **terms)
    with pytest.raises(SpecificationRefused, match="another key for p0"):
        Member(tmp_path, server.plan, key=key_of("p1"), **terms)


def test_a_roster_is_the_same_after_its_form() -> None:
    assert Roster.from_json(ROSTER.to_json()) == ROSTER
    assert ROSTER.names == ("east", "north", "south")
    assert ROSTER.card("north").public == key_of("north").public_key()
    assert len(ROSTER.shown.split()) == 8
    with pytest.raises(DataError, match="no party 'west'"):
        ROSTER.card("west")
    with pytest.raises(ConfigError, match="not whole"):
        Roster.from_json([{"name": "a"}])


def test_the_longest_names_of_most_parties_fit_a_list() -> None:
    names = [f"{each:02}" + "\u00e9" * 58 for each in range(MOST_PARTIES)]
    frame = signed("list", {"plan": "p", "parties": dict.fromkeys(names, "0" * 64)}, key=key_of("north"))
    assert len(content_of("list", frame, key=key_of("north").public_key())[0]["parties"]) == MOST_PARTIES


def test_no_rosters_of_one_or_of_too_many() -> None:
    for many in (1, MOST_PARTIES + 1):
        with pytest.raises(ConfigError, match="give 2 to"):
            Roster(tuple(Card.of(f"p{each}", key_of(f"p{each}")) for each in range(many)))


@pytest.mark.parametrize(
    "name", ["", " north", "nor\nth", "n" * 61, "\ufb00", "Charit\u0435", "\u0410", "\u75c5\u9662"]
)
def test_odd_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="Latin letters"):
        Card.of(name, key_of("x"))


@pytest.mark.parametrize("key", ["", "00", "x" * 64, None, "ab " * 32, "AB" * 32])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="hexadecimal digits"):
        Card(name="north", key=key)


def test_digests_of_different_values_differ() -> None:
    assert len({digest("a", "b"), digest("ab"), digest(["a", "b"]), digest("a", ["b"])}) == 4


@pytest.mark.parametrize("name", [[1], {"a": 1}, None, 7])
def test_a_card_whose_name_is_no_text_makes_no_roster(name: object) -> None:
    cards = [{"name": each, "key": Card.of(each, key_of(each)).key} for each in ("amber", "birch")]
    assert Roster.from_json(cards).names == ("amber", "birch")
    with pytest.raises(ConfigError, match="not whole"):
        Roster.from_json([*cards[1:], cards[0] | {"name": name}])
