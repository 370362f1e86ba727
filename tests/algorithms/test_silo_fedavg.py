from typing import Any

import numpy as np
import pytest

from incrowd import ServerOptimizer
from incrowd._random import Floats
from incrowd.algorithms import FedAvg, RoundReport, SiloCohort
from incrowd.algorithms.silos import Answer, Ask
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget
from tests.algorithms.silos import MODEL, ROUNDS, SEEDED, paying, plan, records, right, silo

ROOM = Budget(epsilon=200.0, delta=1e-5)


def sending(*updates: float | None) -> list[Ask]:
    """Silos that send the same number everywhere; None sends nothing."""

    def ask(place: int, value: float | None) -> Ask:
        def answer(number: int, weights: Floats) -> Answer:
            if value is None:
                return Answer(silo=f"silo {place}", round=number, epsilon=place + 1.0, absence="budget spent")
            update = np.full(weights.size, value)
            return Answer(silo=f"silo {place}", round=number, epsilon=place + 1.0, update=update)

        return answer

    return [ask(place, value) for place, value in enumerate(updates)]


def federation(
    asks: list[Ask], *, server: ServerOptimizer | None = None, init_scale: float = 1.0, **changes: Any
) -> FedAvg[SiloCohort]:
    given: dict[str, Any] = {"asks": asks, "model": MODEL, "rounds": ROUNDS, "randomness": SEEDED}
    return FedAvg(SiloCohort(**given | changes), server=server or ServerOptimizer(), init_scale=init_scale)


def learners(count: int, *, budget: Budget = ROOM) -> list[Ask]:
    """Silos with records and ledgers of their own."""
    return [silo(paying(plan(budget=budget), place=place), name=f"silo {place}").answer for place in range(count)]


def finished(its: FedAvg[SiloCohort]) -> tuple[Floats, list[RoundReport]]:
    state, reports = its.init(), []
    for _ in range(its.cohort.rounds):
        state, report = its.apply(state)
        reports.append(report)
    return state.published, reports


def test_the_server_moves_along_the_mean_of_what_was_sent() -> None:
    its = federation(sending(1.0, 4.0))
    state, report = its.apply(its.init())
    np.testing.assert_allclose(state.weights - its.init().weights, 2.5)
    assert state.round == 1
    assert (report.round, report.stopped, report.epsilon, report.learning_rate) == (0, (), 2.0, 1.0)


def test_who_has_stopped_is_shown_and_does_not_stop_the_others() -> None:
    its = federation(sending(1.0, None, 3.0))
    state, report = its.apply(its.init())
    np.testing.assert_allclose(state.weights - its.init().weights, 2.0)
    assert report.stopped == ("silo 1",)
    assert [standing.absence for standing in report.silos] == [None, "budget spent", None]
    assert report.epsilon == 3.0


def test_where_nobody_sends_anything_the_weights_stay() -> None:
    its = federation(sending(None, None), server=ServerOptimizer(kind="momentum", average="tail"))
    weights, reports = finished(its)
    np.testing.assert_array_equal(weights, its.init().weights)
    assert len(reports) == ROUNDS


def test_silos_learn_together_and_each_meets_its_own_budget() -> None:
    weights, reports = finished(federation(learners(3), init_scale=0.0))
    assert all(0.999 * ROOM.epsilon < standing.epsilon <= ROOM.epsilon for standing in reports[-1].silos)
    by_silo = [[report.silos[place].epsilon for report in reports] for place in range(3)]
    assert all(epsilons == sorted(epsilons) for epsilons in by_silo)
    assert right(weights, records(99, count=500)) > 0.85


def test_a_state_on_disk_goes_on_as_the_run_that_was_not_stopped() -> None:
    whole, _ = finished(federation(learners(2)))
    its = federation(learners(2))
    state, _ = its.apply(its.init())
    again = FedAvg(its.cohort, server=its.server)
    state = again.init().restored(state.to_arrays())
    for _ in range(ROUNDS - 1):
        state, _ = again.apply(state)
    np.testing.assert_array_equal(state.published, whole)


@pytest.mark.parametrize(
    ("asked", "changes", "field"),
    [(2, {"rounds": 0}, "rounds"), (2, {"init_scale": -1.0}, "init_scale"), (0, {}, "silos")],
)
def test_what_cannot_be_is_refused(asked: int, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} = "):
        federation(sending(*[1.0] * asked), **changes)
