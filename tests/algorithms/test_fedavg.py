from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from incrowd import Local, ServerOptimizer
from incrowd._random import SeededRandomness, SystemRandomness
from incrowd.algorithms import ClientCohort, FedAvg, State
from incrowd.data import Clients
from incrowd.errors import ConfigError
from incrowd.learning import ClientTensors
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import Clip, ElementwiseClip, FixedClip, MedianClip, PerLayerClip, QuantileClip
from incrowd.privacy.mechanism.grid import GaussianNoise
from incrowd.privacy.plan.plan import NoiseBy, Plan, PlanConfig, Sampling
from incrowd.privacy.plan.sampling import Everyone, Poisson, constant
from tests.algorithms.conftest import BUDGET, CLASSES, CLIENTS, FEATURES, Maker
from tests.privacy.receipts import noised
from tests.reference.naive_fedavg import exact_rounds

SIZE = FEATURES * CLASSES + CLASSES
LOCAL = Local(learning_rate=0.1, batch_size=4)


def plan_with(
    *,
    clip: Clip | MedianClip | None = None,
    sampling: Sampling = Everyone,
    noise_by: NoiseBy = "server",
    rounds: int = 4,
    cohort: float = CLIENTS,
) -> Plan:
    schedule = constant(rounds=rounds, cohort=cohort)
    config = PlanConfig(members=CLIENTS, schedule=schedule, sampling=sampling, noise_by=noise_by)
    return replace(config, clip=clip or config.clip).calibrate(BUDGET)


def run(algorithm: FedAvg[ClientCohort], *, rounds: int | None = None, state: State | None = None) -> State:
    state = algorithm.init() if state is None else state
    for _ in range(state.round, algorithm.cohort.rounds if rounds is None else rounds):
        state, _ = algorithm.apply(state)
    return state


def same(one: State, other: State) -> bool:
    left, right = one.to_arrays(), other.to_arrays()
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def test_rounds_are_algorithm_1(make: Maker, data: Clients) -> None:
    """The same cohorts and noise through the slow twin give the same weights."""
    plan = plan_with(clip=FixedClip(clip_norm=0.3), sampling=Poisson, cohort=7, rounds=2)
    algorithm = make(plan=plan)
    found = run(algorithm)
    cohorts = [[int(c) for c in algorithm.cohort.private.cohort(number)] for number in range(plan.rounds)]
    noise = GaussianNoise(noise_multiplier=plan.noise_multiplier, clip_norm=0.3)
    noises = [
        noised(noise, np.zeros(SIZE), "noise", number, randomness=SeededRandomness(2), contributions_bound=CLIENTS)
        for number in range(plan.rounds)
    ]
    expected, wrong = (
        exact_rounds(
            algorithm.cohort.model,
            ClientTensors.of(data),
            LOCAL,
            cohorts=cohorts,
            clip_norm=clip_norm,
            noises=noises,
            denominator=7,
            randomness=SeededRandomness(2),
        )
        for clip_norm in (0.3, 0.2)
    )
    assert found.weights == pytest.approx(expected, abs=2e-5)
    assert found.weights != pytest.approx(wrong, abs=2e-3)


PROMISES: dict[str, Callable[[], Plan]] = {
    "everyone": plan_with,
    "poisson": lambda: plan_with(sampling=Poisson, cohort=6),
    "local": lambda: plan_with(noise_by="party"),
    "quantile": lambda: plan_with(clip=QuantileClip(clip_norm=1.0, bit_noise=6.0)),
    "per layer": lambda: plan_with(clip=PerLayerClip(clip_norms=(1.0, 0.5), parts=(FEATURES * CLASSES, CLASSES))),
    "element-wise": lambda: plan_with(clip=ElementwiseClip(limit=0.1, size=SIZE)),
    "median": lambda: plan_with(clip=MedianClip()),
    "correlated": lambda: PlanConfig.in_turns(clients=CLIENTS, rounds=5, groups=3).calibrate(BUDGET),
}


@cache
def promised(name: str) -> Plan:
    return PROMISES[name]()


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMISES)
@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", "yogi"])
def test_a_run_resumed_at_any_round_equals_the_uninterrupted_one(make: Maker, name: str, kind: str) -> None:
    plan = promised(name)
    server = ServerOptimizer(kind=kind, average="tail")
    whole = run(make(plan=plan, server=server))
    for stop in range(plan.rounds + 1):
        ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
        stopped = run(make(plan=plan, server=server, ledger=ledger), rounds=stop)
        arrays = {key: array.copy() for key, array in stopped.to_arrays().items()}
        secret = stopped.secret_arrays()
        assert (secret is not None) is (name == "correlated" and stop < plan.rounds)
        resumed = make(plan=plan, server=server, ledger=ledger)
        again = resumed.init().restored(arrays, secret)
        assert again.round == stop
        assert same(run(resumed, state=again), whole)


@pytest.mark.parametrize("name", ["everyone", "correlated"])
def test_scaffold_shares_gradients_resumes_and_publishes_weights_alone(make: Maker, name: str) -> None:
    plan, local = promised(name), LOCAL.replaced(algorithm="scaffold")
    whole = run(make(plan=plan, local=local))
    assert (whole.weights.shape, whole.shared.shape, whole.published.shape) == ((SIZE,), (SIZE,), (SIZE,))
    assert whole.shared.any()
    ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
    stopped = run(make(plan=plan, local=local, ledger=ledger), rounds=2)
    resumed = make(plan=plan, local=local, ledger=ledger)
    again = resumed.init().restored(stopped.to_arrays(), stopped.secret_arrays())
    assert same(run(resumed, state=again), whole)


def test_arrays_of_another_run_are_refused(make: Maker) -> None:
    arrays = make().init().to_arrays()
    for wrong in (
        {key: array for key, array in arrays.items() if key != "tail"},
        arrays | {"weights": arrays["weights"][:-1]},
        arrays | {"weights": arrays["weights"].astype(np.float32)},
        arrays | {"memory.velocity": arrays["weights"]},
    ):
        with pytest.raises(ConfigError, match="give the arrays of a run like this one"):
            make().init().restored(wrong)


def test_the_memory_of_another_round_or_of_another_kind_of_noise_is_refused(make: Maker) -> None:
    correlated = make(plan=promised("correlated"))
    first = correlated.init()
    after, _ = correlated.apply(first)
    secret = after.secret_arrays()
    assert secret is not None
    for wrong in (
        first.secret_arrays(),
        secret | {"noise.0": secret["noise.0"][:-1]},
        secret | {"more": secret["round"]},
    ):
        with pytest.raises(ConfigError, match="give "):
            first.restored(after.to_arrays(), wrong)
    plain = make().init()
    with pytest.raises(ConfigError, match=r"give what belongs|give the arrays"):
        plain.restored(plain.to_arrays(), secret)


def test_first_weights_are_fresh_ones_times_start(make: Maker) -> None:
    fresh = make().init().weights
    assert np.array_equal(make(init_scale=2.0).init().weights, 2 * fresh)
    assert not make(init_scale=0.0).init().weights.any()
    assert fresh.any()
    with pytest.raises(ConfigError, match=r"init_scale = -1"):
        make(init_scale=-1.0)


def test_absent_clients_change_neither_denominator_nor_noise(make: Maker) -> None:
    quiet = Budget(epsilon=1e6, delta=1e-5)
    config = PlanConfig(members=CLIENTS, schedule=constant(rounds=1, cohort=CLIENTS), sampling=Everyone)
    plan = config.calibrate(quiet)

    def one_round(**rest: float) -> tuple[np.ndarray, int]:
        ledger = Ledger.in_memory(budget=quiet, relation=plan.relation)
        algorithm = make(plan=plan, ledger=ledger, **rest)
        before = algorithm.init()
        after, report = algorithm.apply(before)
        assert report.observed is not None
        return after.weights - before.weights, report.observed.contributions

    (full, everyone), (some, present) = one_round(), one_round(unavailable=0.6)
    assert everyone == CLIENTS > present > 0
    # Every contribution has norm 1, so a mean over those present would be about as long as the full one.
    assert np.linalg.norm(some) < np.linalg.norm(full) * (present / everyone) * 1.5


def test_diagnostics_are_for_simulations_only(make: Maker) -> None:
    """Rule 20."""
    clipped = plan_with(clip=FixedClip(clip_norm=0.4))
    algorithm = make(plan=clipped, diagnose=True)
    _, report = algorithm.apply(algorithm.init())
    assert report.diagnostics is not None
    assert report.diagnostics.between_client_variance > 0
    assert 0 < report.diagnostics.fraction_clipped < 1
    assert report.diagnostics.noise_to_signal is not None
    with pytest.raises(ConfigError, match="only a simulation may"):
        make(diagnose=True, randomness=SystemRandomness())
    _, silent = make(randomness=SystemRandomness()).apply(make().init())
    assert silent.observed is None
    assert silent.diagnostics is None


def test_looking_changes_nothing(make: Maker) -> None:
    assert same(run(make(diagnose=True)), run(make()))


@pytest.mark.parametrize("unavailable", [-0.1, 1.0])
def test_impossible_shares_of_absent_clients_are_refused(make: Maker, unavailable: float) -> None:
    with pytest.raises(ConfigError, match="unavailable"):
        make(unavailable=unavailable)


def test_a_run_over_other_weights_is_refused(make: Maker) -> None:
    cohort = make().cohort
    cohort.private.size += 1
    with pytest.raises(ConfigError, match="a client sends 18 numbers"):
        ClientCohort(engine=cohort.engine, private=cohort.private)
