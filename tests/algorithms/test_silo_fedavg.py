from typing import Any

import numpy as np
import pytest

from incrowd import ServerOptimizer
from incrowd._random import Floats
from incrowd.algorithms import FedAvg, RoundReport, SiloCohort
from incrowd.algorithms.silos import Answer, Ask
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Everyone, Poisson, constant
from incrowd.privacy.release import PrivateRun
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


def private(*, clients: int = 3, rounds: int = ROUNDS, sampled: bool = False, size: int = MODEL.size) -> PrivateRun:
    config = PlanConfig(
        members=clients,
        schedule=constant(rounds=rounds, cohort=clients - 1 if sampled else clients),
        sampling=Poisson if sampled else Everyone,
        clip=FixedClip(clip_norm=1.0),
    )
    its = config.scaled(10.0).plan(Budget(epsilon=50.0, delta=1e-3))
    ledger = Ledger.in_memory(budget=its.budget, relation=its.relation)
    return PrivateRun(its, ledger=ledger, randomness=SEEDED, size=size)


def test_the_server_moves_along_the_mean_of_what_was_sent() -> None:
    its = federation(sending(1.0, 4.0))
    state, report = its.apply(its.init())
    np.testing.assert_allclose(state.weights - its.init().weights, 2.5)
    assert state.round == 1
    assert (report.round, report.stopped, report.epsilon, report.learning_rate) == (0, (), 2.0, 1.0)


def test_public_weights_weigh_those_who_send() -> None:
    its = federation(sending(1.0, 4.0, None), weights=[3.0, 1.0, 100.0])
    state, _ = its.apply(its.init())
    np.testing.assert_allclose(state.weights - its.init().weights, 1.75)


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


def test_with_both_levels_the_server_clips_noises_and_pays_too() -> None:
    its = private()
    asks = sending(5.0, 5.0, None)
    state, _ = federation(asks, private=its).apply(federation(asks, private=its).init())
    moved = state.weights - federation(asks).init().weights
    clipped = 2 / 3 / np.sqrt(MODEL.size)  # two contributions of norm 1, and a public denominator of 3
    noise = its.plan.noise_multiplier / 3
    assert abs(moved.mean() - clipped) < 4 * noise / np.sqrt(MODEL.size)
    assert np.ptp(moved) > 0
    assert its.next_round == 1
    finished(federation(learners(3), private=private()))


def test_both_levels_have_to_fit_together() -> None:
    for wrong in (private(clients=2), private(rounds=ROUNDS + 1), private(size=MODEL.size + 1)):
        with pytest.raises(ConfigError, match="plan for 3 clients, 4 rounds and 18 weights"):
            federation(sending(1.0, 1.0, 1.0), private=wrong)
    with pytest.raises(ConfigError, match="sampling = 'Poisson': use Everyone"):
        federation(sending(1.0, 1.0, 1.0), private=private(sampled=True))
    with pytest.raises(ConfigError, match="the plan weighs all the same"):
        federation(sending(1.0, 1.0, 1.0), private=private(), weights=[1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rounds": 0}, "rounds"),
        ({"weights": [1.0]}, "weights"),
        ({"weights": [1.0, 0.0]}, "weights"),
        ({"init_scale": -1.0}, "init_scale"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} = "):
        federation(sending(1.0, 2.0), **changes)


def test_a_federation_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="silos = 0"):
        federation([])
