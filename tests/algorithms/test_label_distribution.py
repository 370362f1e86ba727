"""Logit adjustment: the first round asks for the label distribution, and published weights have its logarithm."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from incrowd import Local, ServerOptimizer
from incrowd._random import Floats, SeededRandomness
from incrowd.algorithms import ClientCohort, FedAvg, State
from incrowd.data.examples import IGNORED
from incrowd.errors import ConfigError
from incrowd.learning import CROSS_ENTROPY, LOGISTIC, Answer, ClientTensors, CohortEngine, Model, linear, mlp
from incrowd.learning.mean_query import ClassPrior, label_query
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import NoiseBy, Plan, PlanConfig, PrivacyWarning, Sampling
from incrowd.privacy.plan.sampling import Everyone, Poisson, constant, preceded
from incrowd.privacy.release import PrivateRun

CLIENTS, EACH, FEATURES, ROUNDS = 60, 50, 4, 12
MODEL = linear(FEATURES, 3)
PLAIN = Local(learning_rate=1.0, label_shares=0.1)
LOCAL = PLAIN.replaced(label_distribution=0.03)
BUDGET = Budget(epsilon=8.0, delta=1e-3)
SERVER = ServerOptimizer(learning_rate=12.0, decay="linear", average="tail")


def people(*, sort: bool) -> ClientTensors:
    """Nine of ten labels are 1; the others depend on a noisy line. With `sort` most clients have one class alone."""
    generator = np.random.default_rng(8)
    features = generator.normal(size=(CLIENTS * EACH, FEATURES)).astype(np.float32)
    line = features[:, 0] + generator.normal(0, 1.2, len(features))
    labels = np.digitize(line, np.quantile(line, [0.05, 0.95]))
    order = np.argsort(labels, kind="stable") if sort else np.arange(len(labels))
    return ClientTensors(
        features=torch.from_numpy(features),
        labels=torch.from_numpy(labels),
        offsets=np.arange(CLIENTS + 1) * EACH,
        indices=order,
    )


def plan_with(
    *, asked: bool = True, rounds: int = ROUNDS, sampling: Sampling = Everyone, noise_by: NoiseBy = "server"
) -> Plan:
    schedule = constant(rounds=rounds, cohort=CLIENTS if sampling is Everyone else CLIENTS / 2)
    schedule = preceded(schedule, share=0.03) if asked else schedule
    config = PlanConfig(members=CLIENTS, schedule=schedule, sampling=sampling, noise_by=noise_by)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return config.calibrate(BUDGET)


def made(
    data: ClientTensors, plan: Plan, local: Local, ledger: Ledger | None = None, **others: Any
) -> FedAvg[ClientCohort]:
    ledger = ledger or Ledger.in_memory(budget=BUDGET, relation=plan.relation)
    model = others.pop("model", MODEL)
    private = PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(2), size=model.size)
    engine = CohortEngine(model, data, local)
    return FedAvg(ClientCohort(engine=engine, private=private, **others), server=SERVER, init_scale=0.0)


def run(algorithm: FedAvg[ClientCohort], state: State | None = None, *, until: int) -> State:
    state = state or algorithm.init()
    while state.round < until:
        state, _ = algorithm.apply(state)
    return state


def right(data: ClientTensors, weights: Floats) -> float:
    """How often the published model is right for everyone's examples."""
    matrix, bias = weights[: 3 * FEATURES].reshape(3, FEATURES), weights[3 * FEATURES :]
    found = (np.asarray(data.features) @ matrix.T + bias).argmax(1)
    return float((found == data.labels.numpy()).mean())


@pytest.mark.parametrize("sort", [False, True], ids=["alike", "sorted"])
def test_the_published_model_knows_which_class_is_frequent(sort: bool) -> None:
    data, plan = people(sort=sort), plan_with()
    state = run(made(data, plan, LOCAL), until=plan.rounds)
    assert right(data, state.published) >= 0.895
    unadjusted = state.published - (0 if state.adjustment is None else state.adjustment)
    if not sort:  # the control: label shares alone
        assert right(data, unadjusted) < 0.88


def test_the_servers_rounds_count_from_the_next_and_the_first_trains_nobody() -> None:
    algorithm = made(people(sort=False), plan_with(), LOCAL)
    state, report = algorithm.apply(algorithm.init())
    assert not state.weights.any()
    assert state.adjustment is not None
    assert state.published == pytest.approx(state.adjustment)
    rates = [report.learning_rate]
    while state.round <= ROUNDS:
        state, report = algorithm.apply(state)
        rates.append(report.learning_rate)
    assert rates == [0.0, *(SERVER.rate(number, ROUNDS) for number in range(ROUNDS))]
    assert state.tail_rounds == sum(SERVER.counts(number, ROUNDS) for number in range(ROUNDS))
    assert algorithm.cohort.private.next_round == ROUNDS + 1
    assert algorithm.cohort.private.statement().epsilon <= BUDGET.epsilon


PLANS: dict[str, Callable[[], Plan]] = {
    "everyone": plan_with,
    "poisson": lambda: plan_with(sampling=Poisson),
    "local": lambda: plan_with(noise_by="party"),
}


@pytest.mark.parametrize(
    ("name", "stop"),
    [("everyone", 0), ("everyone", 1), ("everyone", ROUNDS // 2), ("poisson", 1), ("local", ROUNDS // 2)],
)
def test_a_run_resumed_at_any_round_equals_the_uninterrupted_one(name: str, stop: int) -> None:
    data, plan = people(sort=True), PLANS[name]()
    whole = run(made(data, plan, LOCAL), until=plan.rounds)
    ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
    arrays = run(made(data, plan, LOCAL, ledger), until=stop).to_arrays()
    resumed = made(data, plan, LOCAL, ledger)
    again = run(resumed, resumed.init().restored(arrays), until=plan.rounds)
    assert np.array_equal(again.published, whole.published)


def test_a_client_s_answer_is_its_own_label_distribution() -> None:
    data = people(sort=False)
    query = CohortEngine(MODEL, data, LOCAL).label_query
    assert query is not None
    for client in range(5):
        labels = data.labels.numpy()[data.examples(client)]
        shares = np.bincount(labels, minlength=3) / EACH
        assert query.bound * query.row(data, client) == pytest.approx(shares - 1 / 3)
    alone = replace(data, labels=torch.full_like(data.labels, 2))
    assert np.linalg.norm(query.row(alone, 0)) == pytest.approx(1)
    several = replace(
        data, labels=torch.from_numpy(np.random.default_rng(1).integers(0, 2, (CLIENTS * EACH, 3))).float()
    )
    asked = label_query(LOCAL, several.labels, LOGISTIC, (3,))
    assert asked is not None
    yes = several.labels.numpy()[several.examples(0)].mean(0)
    assert asked.bound * asked.row(several, 0) == pytest.approx(yes - 0.5)
    places = replace(data, labels=torch.full((CLIENTS * EACH, 2), IGNORED))
    nothing = label_query(LOCAL, places.labels, CROSS_ENTROPY, (2, 3))
    assert nothing is not None
    assert not nothing.row(places, 0).any()  # no labels that count: the uniform distribution


def prior(model: Model = MODEL, *, constant: float = 0.0, labels: Tensor | None = None) -> ClassPrior:
    data = replace(people(sort=False), constant=constant)
    data = data if labels is None else replace(data, labels=labels)
    loss = CROSS_ENTROPY if labels is None else LOGISTIC
    outputs = 3 if labels is None else labels.shape[1]
    query = label_query(LOCAL, data.labels, loss, (outputs,))
    assert query is not None
    return ClassPrior.of(model, data, LOCAL, query)


def test_a_mean_that_is_noise_adjusts_nothing_and_a_clear_one_by_its_logarithm() -> None:
    shares = np.array([0.7, 0.2, 0.1])
    found = prior().shift(Answer(mean=shares - 1 / 3, noise_std=1e-9))[-3:]
    expected = np.log(shares + 0.1)
    assert found == pytest.approx(expected - expected.mean())
    assert not prior().shift(Answer(mean=np.array([0.01, -0.01, 0.0]), noise_std=0.1)).any()
    yes = torch.zeros(CLIENTS * EACH, 2)
    both = prior(linear(FEATURES, 2), labels=yes).shift(Answer(mean=np.array([0.3, 0.0]), noise_std=1e-9))[-2:]
    assert both == pytest.approx([np.log(0.9 / 0.3), 0.0])


def test_a_linear_model_without_biases_is_adjusted_by_its_constant_feature() -> None:
    found = prior(linear(FEATURES, 3, bias=False), constant=0.5)
    weights = found.shift(Answer(mean=np.array([0.4, -0.2, -0.2]), noise_std=1e-9)).reshape(3, FEATURES)
    assert not weights[:, :-1].any()
    plain = prior().shift(Answer(mean=np.array([0.4, -0.2, -0.2]), noise_std=1e-9))[-3:]
    assert 0.5 * weights[:, -1] == pytest.approx(plain)
    prior(mlp((FEATURES, 5, 3)))  # the last bias


class Halved(nn.Module):
    """A bias after which something else comes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 3)

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.layer(features) / 2
        return outputs


class Few(nn.Module):
    """Fewer parameters than outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = features[:, :3] * self.scale
        return outputs


REFUSED: dict[str, Callable[[], object]] = {
    "local.label_distribution = 0.03: the last layer has no bias": lambda: prior(linear(FEATURES, 3, bias=False)),
    "local.label_distribution = 0.03: the last layer": lambda: prior(Model(Halved())),
    "local.label_distribution = 0.03": lambda: prior(Model(Few())),
    "local.label_distribution = 0.03: it needs": lambda: CohortEngine(
        MODEL, people(sort=False), LOCAL.replaced(label_shares=None)
    ),
    "rounds = 1: plan at least 2": lambda: made(people(sort=False), plan_with(asked=False, rounds=1), LOCAL),
}


@pytest.mark.parametrize("words", REFUSED)
def test_settings_that_it_does_not_fit_are_refused(words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        REFUSED[words]()
