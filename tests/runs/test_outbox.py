"""Silos that are asked again, and silos that are killed: what was sent is paid for, once, and within the budget."""

import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from incrowd._random import Randomness, SystemRandomness
from incrowd.errors import BudgetExceeded, DataError, LedgerRolledBack
from incrowd.privacy.account.accounting import price
from incrowd.privacy.account.events import compose
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.privacy.plan.plan import Plan
from incrowd.runs.round_loop import Checkpoints, DurableSilo
from tests.algorithms.silos import BUDGET, ROUNDS, SEEDED, paying, plan, silo, zeros
from tests.privacy.ledgers import start, status_of
from tests.runs.kills import killed_at

KILLED = -signal.SIGKILL
MANY = plan(rounds=2000, epochs=1)
EARNEST = SystemRandomness()
LIFE = 12  # a process answers no more, so that a fast machine does not come to the last round before the last kill


pytestmark = pytest.mark.usefixtures("one_thread")


def ledger_in(folder: Path) -> Ledger:
    return Ledger.open(folder / "ledger.sqlite", budget=BUDGET, relation=MANY.relation, data_identity="records")


def outbox(folder: Path, ledger: Ledger, *, its_plan: Plan, randomness: Randomness, keep: int = 10**6) -> DurableSilo:
    run = paying(its_plan, ledger, randomness=randomness)
    return DurableSilo(silo(run), Checkpoints(folder / "sent", keep=keep))


@pytest.mark.parametrize("randomness", [SEEDED, SystemRandomness()], ids=["seeded", "system"])
def test_asked_again_a_silo_gives_the_same_answer_and_pays_nothing(folder: Path, randomness: Randomness) -> None:
    with ledger_in(folder) as ledger:
        first = outbox(folder, ledger, its_plan=plan(), randomness=randomness)
        answers = [first.answer(number, zeros()) for number in range(2)]
        entries = len(ledger.entries())
    with ledger_in(folder) as ledger:
        again = outbox(folder, ledger, its_plan=plan(), randomness=randomness)
        for number, answer in enumerate(answers):
            repeated = again.answer(number, zeros() + 1.0)
            assert answer.update is not None
            np.testing.assert_array_equal(repeated.update, answer.update)
            for name in ("silo", "round", "epsilon", "absence"):
                assert getattr(repeated, name) == getattr(answer, name)
        assert len(ledger.entries()) == entries


def test_answers_that_are_not_kept_any_more_are_lost_in_earnest(folder: Path) -> None:
    with ledger_in(folder) as ledger:
        its = outbox(folder, ledger, its_plan=plan(), randomness=SystemRandomness(), keep=2)
        for number in range(3):
            assert its.answer(number, zeros()).absence is None
        assert its.answer(0, zeros()).absence == "round lost"
        assert its.answer(1, zeros()).absence is None


def test_who_has_left_sends_nothing_and_keeps_nothing(folder: Path) -> None:
    with ledger_in(folder) as ledger:
        its = outbox(folder, ledger, its_plan=plan(), randomness=SEEDED, keep=ROUNDS)
        for number in range(ROUNDS):
            its.answer(number, zeros())
        assert its.answer(ROUNDS, zeros()).absence == "budget spent"
        assert its.sent.rounds() == list(range(ROUNDS))


def test_an_old_ledger_under_what_was_sent_is_refused(folder: Path) -> None:
    with ledger_in(folder) as ledger:
        outbox(folder, ledger, its_plan=plan(), randomness=SEEDED).answer(0, zeros())
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    with ledger_in(elsewhere) as ledger:
        its = outbox(folder, ledger, its_plan=plan(), randomness=SEEDED)
        for number in (0, 1):
            with pytest.raises(LedgerRolledBack, match="the ledger of north does not know that round"):
                its.answer(number, zeros())
        assert len(ledger.entries()) == 1


def test_a_file_of_something_else_is_named(folder: Path) -> None:
    with ledger_in(folder) as ledger:
        its = outbox(folder, ledger, its_plan=plan(), randomness=SEEDED)
        its.answer(0, zeros())
        its.sent.save(0, {"weights": zeros()})
        with pytest.raises(DataError, match="round 0 cannot be read"):
            its.answer(0, zeros())


# Killed


def serve(folder: Path, *, rounds: int, randomness: Randomness) -> None:
    """A silo's process, and the server's memory of which rounds are over: answer from the first round that is not."""
    over = folder / "over"
    with ledger_in(folder) as ledger:
        its = outbox(folder, ledger, its_plan=MANY, randomness=randomness)
        done = over.stat().st_size if over.exists() else 0
        for number in range(done, done + rounds):
            its.answer(number, zeros())
            with over.open("a") as file:
                file.write(".")


def check(folder: Path) -> tuple[int, int]:
    """What holds after every crash; how many rounds were sent, and how many were charged."""
    with ledger_in(folder) as ledger:  # takes an interrupted write back
        spent, paid = ledger.spent().epsilon, paying(MANY, ledger).rounds
    sent = Checkpoints(folder / "sent").rounds()
    assert set(sent) <= paid
    released = compose([(MANY.round(0).event, len(sent))])
    assert price(released, delta=BUDGET.delta, relation=MANY.relation).epsilon <= spent <= BUDGET.epsilon
    report = verify(folder / "ledger.sqlite")
    assert report["intact"], report
    return len(sent), len(paid)


def finish(folder: Path, *, randomness: Randomness) -> None:
    """After all crashes the rest of the plan is still there, comes to the budget, and leaves no room beside it."""
    with ledger_in(folder) as ledger:
        its = outbox(folder, ledger, its_plan=MANY, randomness=randomness)
        assert its.answer(MANY.rounds, zeros()).absence is None
        standing = ledger.reservation(its.silo.run.label)
        assert (standing.events, standing.charged) == (MANY.rounds, len(its.silo.run.rounds))
        assert 0.999 * BUDGET.epsilon < ledger.promised().epsilon <= BUDGET.epsilon
        with pytest.raises(BudgetExceeded):
            ledger.check_room(plan().runs)


@pytest.mark.parametrize("randomness", [SystemRandomness(), SEEDED], ids=["system", "seeded"])
@pytest.mark.parametrize("kills", [12, pytest.param(50, marks=pytest.mark.slow)])
def test_a_silo_killed_at_random_moments_has_sent_nothing_that_it_did_not_pay_for(
    folder: Path, kills: int, randomness: Randomness
) -> None:
    moments = random.Random(kills)  # noqa: S311 - when to kill is no secret
    sent = paid = 0
    ledger_in(folder).close()
    for _ in range(kills):
        awaited = sent + moments.choice([0, 0, 1, 2, 5])  # a slow machine gets as far as a fast one
        process = start(lambda: serve_and_wait(folder, randomness=randomness))
        while len(Checkpoints(folder / "sent").rounds()) < awaited:
            assert os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None, "it ended by itself"
            time.sleep(0.0005)
        time.sleep(moments.uniform(0.0, 0.01))
        os.kill(process, signal.SIGKILL)
        assert status_of(process) == KILLED
        before, (sent, paid) = paid, check(folder)
        assert paid >= before
    assert paid - sent <= kills  # each crash wastes one round at most
    assert sent > kills / 4  # they did get somewhere
    finish(folder, randomness=randomness)


def serve_and_wait(folder: Path, *, randomness: Randomness) -> None:
    serve(folder, rounds=LIFE, randomness=randomness)
    signal.pause()


@pytest.mark.parametrize("stride", [331, pytest.param(29, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_a_silo_killed_before_any_line_of_its_answer_has_sent_nothing_that_it_did_not_pay_for(
    folder: Path, stride: int
) -> None:
    found, status = [], KILLED
    for line in range(1, 10**6, stride):
        place = folder / str(line)
        place.mkdir()
        serve(place, rounds=1, randomness=EARNEST)
        work = partial(serve, place, rounds=1, randomness=EARNEST)
        status = status_of(start(partial(killed_at, "/incrowd/", line, work)))
        found.append(check(place))
        finish(place, randomness=EARNEST)
        if status != KILLED:
            break
    assert status == 0
    assert len(found) * stride > 3000
    assert set(found) == {(1, 1), (1, 2), (2, 2)}  # killed before the charge, after it, and when all was sent
    # In this order, but for a line or two that a run under load executes more often than the one before it.
    assert sum(one != other for one, other in zip(found, sorted(found), strict=True)) <= 2


def test_what_was_cut_off_is_not_taken_for_a_state_and_goes_away(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"a": np.zeros(3)})
    cut_off = tmp_path / "round-000002.safetensors.part"
    cut_off.write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("of the user")
    assert checkpoints.rounds() == [1]
    checkpoints.save(3, {"a": np.zeros(3)})
    assert not cut_off.exists()
    assert (tmp_path / "notes.txt").exists()


def test_a_damaged_newest_is_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"a": np.arange(3.0)})
    checkpoints.save(2, {"a": np.arange(3.0)})
    newest = tmp_path / "round-000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"round-000002\.safetensors cannot be read .* delete it"):
        checkpoints.at(2)
    newest.unlink()
    assert checkpoints.rounds() == [1]
    assert checkpoints.at(1) is not None
