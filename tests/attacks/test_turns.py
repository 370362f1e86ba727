"""Correlated noise hides one contribution in so many rounds: nobody has others' turns, and no absence moves them.

A server asks a party in rounds that are others' turns; turns that were positions among those who are in a table, or in
a numbered list, told by the sum of any round whether somebody is in it: an absence moved all who came after.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from incrowd._random import SeededRandomness
from incrowd.algorithms import ClientCohort
from incrowd.data import Clients
from incrowd.errors import ConfigError, LedgerMismatch, SpecificationRefused
from incrowd.federation import Federation
from incrowd.learning import ClientTensors, CohortEngine, linear
from incrowd.parties.keys import question_key
from incrowd.parties.network import offer_of
from incrowd.parties.offer import Offer
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import MedianClip
from incrowd.privacy.mechanism.correlated import CorrelatedNoise
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Cyclic, Everyone, Poisson, Sampler, constant, named_places
from incrowd.privacy.release import PrivateRun
from incrowd.runs.config import Config, parse
from incrowd.runs.work import assemble
from incrowd.settings import Local
from tests.parties.members import Hospitals, settings_text
from tests.parties.parties import request

pytestmark = pytest.mark.watched


PLAN = "epsilon = 50.0\ndelta = 1e-5\nrounds = 6\n"
TURNS = PLAN + 'noise = "correlated"\ngroups = 3\n'


def answered(hospitals: Hospitals, name: str, privacy: str) -> list[int]:
    """The rounds that a party answers when it is asked in all."""
    (hospitals.folder / "there.toml").write_text(settings_text(here=False, privacy=privacy))
    federation = Federation.from_settings(hospitals.folder / "there.toml")
    assert isinstance(federation.settings, Config)
    offer: Offer = offer_of(assemble(federation.settings, given=federation.given, schedule=federation.schedule))
    assert not isinstance(offer.plan.config.clip, MedianClip)
    key, party = question_key(hospitals.folder / "server"), hospitals.member(name).open()
    party.answer(offer.to_bytes(key))
    found, history = [], b""
    for number in range(offer.plan.rounds):
        question = request(offer, number, clip=offer.plan.config.clip, history=history)
        history += bytes.fromhex(question.digest)
        try:
            party.answer(question.to_bytes(key))
        except SpecificationRefused:
            continue
        found.append(number)
    party.close()
    return found


@pytest.mark.parametrize(("name", "own"), [("amber", [0, 3]), ("birch", [1, 4]), ("cedar", [2, 5])])
def test_a_party_answers_when_it_is_its_turn(name: str, own: list[int], tmp_path: Path) -> None:
    assert answered(Hospitals(tmp_path), name, TURNS) == own


DECLARED, ROUNDS, GROUPS = 20, 8, 4
PEOPLE = tuple(f"person {number:02d}" for number in range(DECLARED))


def turns(folder: Path, people: tuple[str, ...], *, places: bool = True) -> dict[str, list[int]]:
    """The rounds in which each of the people in a private table contributes, in a run of correlated noise.

    Without `places` it is the broken twin, in which a turn is a position among those who are there.
    """
    folder.mkdir()
    rows = [f"{name},{number % 3},{number % 2}" for number, name in enumerate(people)]
    (folder / "table.csv").write_text("\n".join(["who,x,y", *rows]) + "\n")
    data = {"name": "table", "folder": str(folder), "file": "table.csv", "client": "who", "label": "y", "classes": 2}
    privacy = {"epsilon": 1.0, "delta": 1e-3, "rounds": ROUNDS, "noise": "correlated", "groups": GROUPS}
    work = assemble(parse({"data": data | {"clients": DECLARED}, "privacy": privacy}))
    private = work.algorithm(
        Ledger.in_memory(budget=work.plan.budget, relation=work.plan.relation), label="run"
    ).cohort.private
    private.places = private.places if places else np.arange(len(people))
    cohorts = [work.engine.present(private.cohort(number)) for number in range(ROUNDS)]
    assert work.data.owners is not None
    named = [{work.data.owners[client] for client in cohort} for cohort in cohorts]
    return {name: [number for number, there in enumerate(named) if name in there] for name in people}


def moved(with_all: dict[str, list[int]], without: dict[str, list[int]]) -> float:
    """How far apart the sums of all rounds are, where everybody's contribution has length 1 and is unlike all others.

    It is measured as the noise hides it: by what the strategy makes of the sums.
    """
    sums: NDArray[np.float64] = np.zeros((ROUNDS, DECLARED))
    for sign, rounds_of in ((1.0, with_all), (-1.0, without)):
        for name, rounds in rounds_of.items():
            sums[rounds, PEOPLE.index(name)] += sign
    column = correlated().column
    strategy = np.array([[column[t - s] if s <= t else 0.0 for s in range(ROUNDS)] for t in range(ROUNDS)])
    return float(np.linalg.norm(strategy @ sums))


def correlated() -> CorrelatedNoise:
    config = PlanConfig.in_turns(clients=DECLARED, rounds=ROUNDS, groups=GROUPS)
    found = config.calibrate(Budget(epsilon=1.0, delta=1e-3)).correlated
    assert found is not None
    return found


@pytest.mark.parametrize("absent", [0, 7, 19])
def test_an_absent_person_moves_nobody_s_turn_and_the_sums_by_what_is_priced(absent: int, tmp_path: Path) -> None:
    others = PEOPLE[:absent] + PEOPLE[absent + 1 :]
    with_all, without = turns(tmp_path / "all", PEOPLE), turns(tmp_path / "others", others)
    assert {name: with_all[name] for name in others} == without
    assert moved(with_all, without) <= correlated().sensitivity * (1 + 1e-9)


def test_control_by_position_an_absent_person_moved_all_who_come_after(tmp_path: Path) -> None:
    with_all = turns(tmp_path / "all", PEOPLE, places=False)
    without = turns(tmp_path / "others", PEOPLE[1:], places=False)
    assert moved(with_all, without) > 3 * correlated().sensitivity


@given(people=st.sets(st.text(), min_size=1), groups=st.integers(1, 9), rounds=st.integers(1, 30))
def test_a_name_alone_gives_its_turns_which_keep_their_distance(people: set[str], groups: int, rounds: int) -> None:
    names = sorted(people)
    sampler = Cyclic(clients=groups * len(names), cohort=len(names))
    taken = [
        [number for number in range(rounds) if client in sampler.among(named_places(names), round=number)]
        for client in range(len(names))
    ]
    for name, its in zip(names, taken, strict=True):
        (place,) = named_places([name]).tolist()
        assert its == [number for number in range(rounds) if sampler.has_turn(place, round=number)]
        assert len(its) <= -(-rounds // groups)
        assert all(later - earlier == groups for earlier, later in pairwise(its))


def test_declared_clients_without_places_take_no_turns() -> None:
    """A program of one's own numbers clients by position: then nobody of a declared number may be absent."""
    data = Clients.from_arrays(
        np.eye(9, dtype=np.float32), np.zeros(9, np.int64), owner=np.arange(9), classes=2, name="nine", clients=10
    )
    its = PlanConfig.in_turns(clients=10, rounds=4, groups=2).calibrate(Budget(epsilon=1.0, delta=1e-3))
    engine = CohortEngine(linear(9, 2), ClientTensors.of(data), Local())

    def made(places: NDArray[np.int64] | None) -> ClientCohort:
        ledger = Ledger.in_memory(budget=its.budget, relation=its.relation)
        run = PrivateRun(
            its, ledger=ledger, randomness=SeededRandomness(0), size=engine.model.size, label="run", places=places
        )
        return ClientCohort(engine=engine, private=run)

    with pytest.raises(ConfigError, match="places = None: clients take turns, and some may be absent"):
        made(None)
    assert made(data.places).private.cohort(0).size <= 9


BUDGET = Budget(epsilon=8.0, delta=1e-5)
CLIENTS, OF_THREE = 12, 3
VALUES = np.array([1.0, -1.0, 0.0] * 4)
"""The contributions of twelve clients with a clip bound of 1: a group's members agree, and the groups do not."""


def sums(sampler: Sampler, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sums of as many rounds as there are groups, before noise."""
    stream = SeededRandomness(0).stream("cohort")
    return np.array([values[sampler.sample(stream, round=number)].sum() for number in range(OF_THREE)])


def test_a_removed_client_shifts_the_groups_and_an_empty_place_does_not() -> None:
    for client in range(CLIENTS):
        emptied = VALUES.copy()
        emptied[client] = 0
        turns = Cyclic(clients=CLIENTS, cohort=CLIENTS / OF_THREE)
        assert np.linalg.norm(sums(turns, VALUES) - sums(turns, emptied)) <= 1
    # The broken twin: the relation that it would have to hide, with one client fewer in the list.
    with_all = sums(Cyclic(clients=CLIENTS, cohort=CLIENTS / OF_THREE), VALUES)
    assert np.linalg.norm(with_all - sums(Cyclic(clients=CLIENTS - 1, cohort=(CLIENTS - 1) / OF_THREE), VALUES[1:])) > 5


@pytest.mark.filterwarnings("ignore:delta")
def test_who_counts_clients_promises_no_more_than_an_empty_place() -> None:
    everyone = PlanConfig(members=CLIENTS, schedule=constant(rounds=2, cohort=CLIENTS), sampling=Everyone)
    in_turns = PlanConfig.in_turns(clients=CLIENTS, rounds=4, groups=OF_THREE)
    for plan in (everyone.calibrate(BUDGET), in_turns.calibrate(BUDGET)):
        assert plan.relation is plan.round(0).sampler.relation is Relation.REPLACE_SPECIAL
        terms: dict[str, Any] = {"randomness": SeededRandomness(0), "size": 2}
        run = PrivateRun(plan, ledger=Ledger.in_memory(budget=BUDGET, relation=plan.relation), **terms)
        said = " ".join(run.statement().text().split())
        assert "(zero out one client)" in said
        assert "whether one client contributed or left its place empty (how many there are is public)" in said
        with pytest.raises(LedgerMismatch):
            PrivateRun(plan, ledger=Ledger.in_memory(budget=BUDGET, relation=Relation.ADD_OR_REMOVE_ONE), **terms)
    assert Poisson(clients=CLIENTS, cohort=3).relation is Relation.ADD_OR_REMOVE_ONE  # coins are nobody else's
