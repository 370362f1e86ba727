"""A server of real silos: who is absent, what is refused by name, what may be claimed, and a server that is killed."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from incrowd._random import Floats
from incrowd.algorithms import SiloCohort
from incrowd.algorithms.silos import Absence, Answer
from incrowd.errors import ConfigError, DataError, RoundUnanswered
from incrowd.learning.dpsgd.engine import BatchedRecords, on_tensors
from incrowd.parties.frames import Place, Request, opened, read_silo, sealed, sealed_answer
from incrowd.parties.served import (
    LARGEST,
    UNSAID,
    ServedSilos,
    SiloServer,
    check_answer,
    checked_statement,
    longest_update,
    recomputed,
    served,
)
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.statement import Statement
from incrowd.runs.run import Run
from incrowd.settings import Descent
from tests.algorithms import silos as small
from tests.parties.nodes import PlainLine
from tests.parties.silo_parties import KEYS, SERVER, Hospitals, federation_of
from tests.parties.test_silo_party import answer_of, rows, weights
from tests.runs.test_silo_run import SEEDED
from tests.runs.test_silo_run import small as silos

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def federation() -> Any:
    return federation_of()


@pytest.fixture
def hospitals(federation: Any, tmp_path: Path) -> Hospitals:
    found = Hospitals(tmp_path / "parties", federation)
    found.accept()
    return found


def server_of(run: Run) -> SiloServer:
    assert isinstance(run.work, ServedSilos)
    return run.work.server


def absences(folder: Path) -> list[list[object]]:
    return [[standing["absence"] for standing in row["silos"]] for row in rows(folder)]


def changed(hospitals: Hospitals, change: Callable[[bytes, int], bytes], *, place: int = 1) -> PlainLine:
    """A line on which what one silo sends is changed, given the frame and how many it has sent before."""
    line, sent = hospitals.line(), [0]
    honest = line.nodes[10 + place]

    def answer(frame: bytes) -> bytes:
        sent[0] += 1
        return change(honest(frame), sent[0] - 1)

    return PlainLine({**line.nodes, 10 + place: answer})


def test_a_silo_that_is_silent_is_absent_for_that_round_alone(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path / "parties", federation_of())
    hospitals.accept()
    whole = hospitals.line()

    def without(frame: bytes) -> bytes:
        asked = Request.read(frame, key=SERVER.public_key(), most=hospitals.offer.size).place.round
        return b"" if asked == 1 else whole.nodes[11](frame)

    line = PlainLine({**whole.nodes, 11: without})
    hospitals.run(tmp_path / "run", line).train()
    assert absences(tmp_path / "run") == [[None] * 3, [None, "no answer", None], [None] * 3]
    assert hospitals.charged(1) == [0, 2]
    other = Hospitals(tmp_path / "others", hospitals.federation)
    other.accept()
    other.gone = {1}
    gone = other.run(tmp_path / "gone").train()
    assert absences(tmp_path / "gone") == [[None, "no answer", None]] * 3
    assert gone["epsilon_by_silo"]["silo-2"] == 0
    assert gone["epsilon_by_silo"]["silo-1"] > 7.9
    assert UNSAID in " ".join(gone["statement"]["silo-2"]["caveats"])
    assert UNSAID not in " ".join(gone["statement"]["silo-1"]["caveats"])
    assert other.charged(1) == []


ODD: dict[str, Callable[[Floats], Floats]] = {
    "too large for float32": lambda update: update * 0 + 1e39,
    "beyond squares": lambda update: update * 0 + 1e200,
    "not a number": lambda update: update * math.nan,
    "too long": lambda update: update * 1e3,
    "shorter": lambda update: update[1:],
}


@pytest.mark.parametrize("odd", ODD)
def test_what_a_silo_cannot_have_made_is_refused_by_name_and_the_run_goes_on(
    odd: str, hospitals: Hospitals, tmp_path: Path
) -> None:
    def change(frame: bytes, number: int) -> bytes:
        if number != 1:
            return frame
        honest = answer_of(frame, hospitals.offer, 1, place=1)
        assert honest.update is not None
        place = Place(plan=hospitals.offer.fingerprint, round=1, party="silo-2")
        return sealed_answer(replace(honest, update=ODD[odd](honest.update)), place, key=KEYS["silo-2"])

    found = hospitals.run(tmp_path / "run", changed(hospitals, change)).train()
    assert absences(tmp_path / "run") == [[None] * 3, [None, "refused", None], [None] * 3]
    assert all(np.isfinite(array).all() for array in weights(tmp_path / "run").values())
    assert found["epsilon_by_silo"]["silo-2"] > 7.9, "it has paid for the round all the same"


def test_nothing_of_a_silo_counts_that_it_has_not_signed_for_this_round(hospitals: Hospitals, tmp_path: Path) -> None:
    offer, heard = hospitals.offer, list[bytes]()

    def change(frame: bytes, number: int) -> bytes:
        heard.append(frame)
        return heard[0] if number else frame

    hospitals.run(tmp_path / "run", changed(hospitals, change)).train()
    assert [row[1] for row in absences(tmp_path / "run")] == [None, "no answer", "no answer"]
    stranger = Ed25519PrivateKey.generate()
    place = Place(plan=offer.fingerprint, round=0, party="silo-2")
    forged = sealed_answer(Answer(silo="silo-2", round=0, epsilon=0.0, absence="budget spent"), place, key=stranger)
    server = server_of(hospitals.run(tmp_path / "other", changed(hospitals, lambda *_: forged)))
    with pytest.raises(RoundUnanswered):  # the others have answered another question
        server.answers(0, np.zeros(offer.size))
    server.remember(0, vars(Answer(silo="silo-2", round=0, epsilon=1.0, absence="budget spent")))
    assert (server.epsilons["silo-2"], server.answered["silo-2"]) == (1.0, set())


@pytest.mark.parametrize("seeds", [True, False], ids=["seeded", "earnest"])
def test_a_server_that_is_killed_asks_the_same_again_and_nobody_pays_twice(
    seeds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospitals = Hospitals(tmp_path / "parties", federation_of(seeded=seeds))
    hospitals.accept()

    class Killed(BaseException): ...

    def killed(*_: object, **__: object) -> None:
        raise Killed

    rounds = [0]

    def after_answers(self: Any, state: Any, answers: Any) -> Any:
        rounds[0] += 1
        if rounds[0] == 2:
            raise Killed
        return original(self, state, answers)

    original = SiloCohort.combined
    with monkeypatch.context() as patched:
        patched.setattr(SiloCohort, "combined", after_answers)
        with pytest.raises(Killed):
            hospitals.run(tmp_path / "run").train()
    before = set(hospitals.answers)
    for place in range(3):
        hospitals.kill(place)
    found = hospitals.run(tmp_path / "run").train()
    assert found["rounds"] == 3
    assert not hospitals.refused
    assert len(set(hospitals.answers)) == 3 * 4, "of each round, and the last question, one answer of each silo"
    assert before < set(hospitals.answers)
    assert all(hospitals.charged(place) == [0, 1, 2] for place in range(3))
    if seeds:
        whole = Hospitals(tmp_path / "whole parties", hospitals.federation)
        whole.accept()
        whole.run(tmp_path / "whole").train()
        assert weights(tmp_path / "run") == weights(tmp_path / "whole")
        assert rows(tmp_path / "run") == rows(tmp_path / "whole")
    again = hospitals.run(tmp_path / "run").train()
    assert again["statement"] == found["statement"]


def test_parties_state_their_numbers_of_records(tmp_path: Path) -> None:
    config = Hospitals(tmp_path / "parties", federation_of()).config
    with pytest.raises(ConfigError, match=r"privacy\.records|records"):
        Run.create(config.replaced(privacy=config.privacy.replaced(records=None)), tmp_path / "run")


def test_what_silos_cannot_be_asked_for_is_refused(hospitals: Hospitals, tmp_path: Path) -> None:
    network, config = hospitals.network(hospitals.line()), hospitals.config
    here = Run.create(silos(*SEEDED), tmp_path / "here")
    with pytest.raises(ConfigError, match="silos that are asked are real parties"):
        served(here, network)
    skipping = Run.create(config.replaced(run=config.run.replaced(checkpoint_every=2)), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"checkpoint_every = 2: silos that are asked are asked once"):
        served(skipping, network)


PLACE = Place(plan="p" * 64, round=2, party="silo-1")


def read(frame: bytes) -> Answer:
    return read_silo(frame, place=PLACE, size=3, key=KEYS["silo-1"].public_key())


@pytest.mark.parametrize("absence", [None, "budget spent", "round lost"])
def test_what_a_silo_sends_comes_out_as_it_went_in(absence: Absence | None) -> None:
    update = np.array([1.0, -2.5, 1e-300]) if absence is None else None
    sent = Answer(silo="silo-1", round=2, epsilon=0.5, update=update, absence=absence)
    found = read(sealed_answer(sent, PLACE, key=KEYS["silo-1"]))
    assert vars(replace(found, update=None)) == vars(replace(sent, update=None))
    np.testing.assert_equal(found.update, update)


@given(
    head=st.dictionaries(
        st.sampled_from(["epsilon", "absence"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.text()
        | st.lists(st.none())
        | st.floats(allow_nan=False, allow_infinity=False),
    ),
    body=st.binary(max_size=40),
)
def test_a_silo_that_signs_nonsense_is_refused_or_finite(head: dict[str, Any], body: bytes) -> None:
    try:
        found = read(sealed("silo", PLACE, {"epsilon": 1.0, "absence": ""} | head, body, key=KEYS["silo-1"]))
    except DataError:
        return
    assert found.epsilon >= 0
    assert found.update is None or np.isfinite(found.update).all()


PLAN = small.plan(noise=2.0, budget=replace(small.BUDGET, epsilon=40.0))


def said(plan: Plan, rounds: int = 2, **changes: Any) -> dict[str, Any]:
    ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    for number in range(rounds):
        ledger.charge(plan.round(number).event)
    form = replace(plan.statement(ledger, own=rounds), **changes).to_json()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in form.items()}


def test_a_silos_own_statement_is_taken_as_it_is() -> None:
    for rounds in (2, 3):
        found = checked_statement(said(PLAN, rounds), PLAN, answered=2)
        assert found.to_json()["text"] == said(PLAN, rounds)["text"]
    ours = recomputed(PLAN, 2)
    assert ours.epsilon == pytest.approx(said(PLAN)["epsilon"], rel=1e-9)
    assert recomputed(PLAN, 0).epsilon == 0
    assert UNSAID in " ".join(ours.text().split())


@pytest.mark.parametrize(
    "form",
    [
        lambda plan: said(plan, 1),
        lambda plan: said(plan, epsilon=0.0),
        lambda plan: said(plan, epsilon=math.nan),
        lambda plan: said(plan) | {"epsilon": 0.5},
        lambda plan: said(plan) | {"text": "nothing"},
        lambda plan: said(plan, delta=1e-3),
        lambda plan: said(plan, unit="hospital"),
        lambda plan: said(plan, sampler="nobody"),
        lambda plan: said(plan, trust="everybody is trusted"),
        lambda plan: said(plan, assumed=()),
        lambda plan: said(plan, not_covered=()),
        lambda plan: said(plan, accountant="abacus"),
        lambda plan: said(plan, caveats=("a" * 501,)),
        lambda plan: said(plan, caveats=("line\nbreak",)),
        lambda plan: said(plan, caveats=tuple(map(str, range(21)))),
        lambda plan: {name: value for name, value in said(plan).items() if name != "unit"},
        lambda plan: said(plan) | {"relation": "none"},
        lambda plan: said(plan) | {"caveats": None},
        lambda _: [],
        lambda _: None,
    ],
)
def test_a_statement_that_cannot_be_recomputed_is_refused(form: Callable[[Plan], object]) -> None:
    with pytest.raises(DataError):
        checked_statement(form(PLAN), PLAN, answered=2)
    checked_statement(said(PLAN), PLAN, answered=2)  # the control


@pytest.mark.filterwarnings("ignore::incrowd.privacy.plan.plan.PrivacyWarning")
def test_a_statement_that_leaves_out_a_caveat_of_the_plan_is_refused() -> None:
    weak = small.plan(noise=2.0, budget=Budget(epsilon=40.0, delta=0.1))
    checked_statement(said(weak), weak, answered=2)
    with pytest.raises(DataError, match="leaves out what weakens it"):
        checked_statement(said(weak, caveats=()), weak, answered=2)


@pytest.mark.parametrize("number", [1e-3, 1e3, 1e200, math.nan])
def test_an_answer_that_the_plan_cannot_give_is_refused(number: float) -> None:
    stated: dict[str, Any] = {"silo": "north", "round": 0, "epsilon": 1.0}
    answer = Answer(update=np.full(small.MODEL.size, number), **stated)
    with nullcontext() if number == 1e-3 else pytest.raises(DataError, match="longer than its plan"):
        check_answer(answer, PLAN, descent=Descent(learning_rate=0.5), start=0.0)
    check_answer(Answer(absence="budget spent", **stated), PLAN, descent=Descent(learning_rate=0.5), start=0.0)
    assert longest_update(PLAN, size=9, descent=Descent(learning_rate=1e30)) == LARGEST


@pytest.mark.parametrize("plan", [None, "another"])
def test_a_run_whose_silo_understates_says_what_the_server_knows(
    hospitals: Hospitals, tmp_path: Path, plan: str | None
) -> None:
    def change(frame: bytes, number: int) -> bytes:
        if number != 3:
            return frame
        place = Place(plan=plan or hospitals.offer.fingerprint, round=3, party="silo-2")
        _, _, head, _ = opened(frame, ("statement",), key=KEYS["silo-2"].public_key(), most=0)
        lies = {"statement": replace(Statement.from_json(head["statement"]), epsilon=0.1).to_json()}
        return sealed("statement", place, lies, b"", key=KEYS["silo-2"])

    found = hospitals.run(tmp_path / "run", changed(hospitals, change)).train()
    assert UNSAID in found["statement"]["silo-2"]["caveats"]
    honest = found["statement"]["silo-1"]
    assert found["statement"]["silo-2"]["epsilon"] == pytest.approx(honest["epsilon"], rel=1e-6)
    with Ledger.read(tmp_path / "parties" / "silo-1" / "ledger.sqlite") as ledger:
        assert honest["epsilon"] == ledger.spent().epsilon
    assert verify(tmp_path / "parties" / "silo-1" / "ledger.sqlite")["intact"]


@pytest.mark.parametrize(
    ("descent", "batch", "noise", "scale"),  # little noise is not for samples: its price takes half a minute
    [
        *((Descent(learning_rate=0.5), 40, noise, scale) for noise in (0.01, 2.0) for scale in (0.0, 30.0)),
        (Descent(learning_rate=0.5, momentum=0.9), 40, 0.01, 30.0),
        (Descent(learning_rate=0.5, weight_decay=0.1), 40, 2.0, 30.0),
        (Descent(learning_rate=0.5, momentum=0.5, weight_decay=0.05), 8, 2.0, 30.0),
        (Descent(learning_rate=0.1), 4, 2.0, 0.0),
    ],
)
def test_honest_updates_are_within_the_bound_and_it_is_not_far_off(
    descent: Descent, batch: float, noise: float, scale: float
) -> None:
    plan = small.plan(batch_size=batch, epochs=2, noise=noise, budget=Budget(epsilon=1e9, delta=1e-5))
    start = np.full(small.MODEL.size, scale)
    training = plan.training()
    deviation = training.noise_multiplier * training.sensitivity
    norms = []
    for seed in range(5):
        engine = BatchedRecords(small.MODEL, small.records(seed), descent)
        drawn = small.SEEDED.stream("noise", seed)
        hidden = on_tensors(lambda total: total + deviation * drawn.normals(len(total)))  # noqa: B023 - called at once
        trained = engine.train(start, training, noise=hidden, batches=small.SEEDED.stream("batches", seed))
        norms.append(float(np.linalg.norm(trained.weights.numpy() - start)))
    bound = longest_update(plan, size=start.size, descent=descent, start=float(np.linalg.norm(start)))
    assert max(norms) <= bound
    assert bound <= 100 * max(norms)
