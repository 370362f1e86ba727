"""Code of others: a part of a federation weakens the promise, or hears more than is public, and nobody is told."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.dp_event import LaplaceDpEvent, SampledWithoutReplacementDpEvent
from torch import Tensor, nn

from incrowd import Clients, Federation, Local, _extensions
from incrowd._random import Floats, Integers, KeyedStream, SeededRandomness, Stream, SystemRandomness
from incrowd.errors import AccountingError, ConfigError, UnpricedEvent
from incrowd.learning import ClientTensors, CohortEngine, Model
from incrowd.learning.local_algorithms import Sgd
from incrowd.parties.offer import Offer
from incrowd.privacy.account.accounting import ACCOUNTANTS, Budget, Relation, delta_at, price
from incrowd.privacy.account.calibrate import smallest_noise
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism import clipping
from incrowd.privacy.mechanism.clipping import ThirdPartyClip
from incrowd.privacy.paid import RecordRun
from incrowd.privacy.plan import forms
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, Poisson, ThirdPartySampling, constant
from incrowd.privacy.release import PrivateRun
from incrowd.runs.run import Run
from incrowd.types import ClientAtWork, register
from tests.attacks import released

pytestmark = pytest.mark.watched

CLIENTS, SIZE, C = 20, 4, 0.5
LOOSE = Budget(epsilon=1e6, delta=1e-3)  # noise far below a clip bound
EVENT = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0))
ADDED = Relation.ADD_OR_REMOVE_ONE


@pytest.fixture(autouse=True)
def only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered, and what was seen of it, ends with the test."""
    monkeypatch.setattr(_extensions, "_REGISTERED", {})
    monkeypatch.setattr(_extensions, "_FIRST", {})


def planned(budget: Budget = LOOSE, **parts: Any) -> Plan:
    given: dict[str, Any] = {"members": CLIENTS, "schedule": constant(rounds=3, cohort=5)}
    return PlanConfig(**given | parts).calibrate(budget)


def run_of(plan: Plan, *, seeded: bool = True) -> PrivateRun:
    return released.run_of(plan, randomness=None if seeded else SystemRandomness(), size=SIZE)


def total(clip: Callable[[Floats, float], Floats], *, rows: Floats | None = None) -> Floats:
    """The sum of one round under a registered clip, all but without noise."""
    register("clips", "mine", clip)
    mine = ThirdPartyClip(name="mine", clip_norm=C)
    plan = planned(schedule=constant(rounds=1, cohort=CLIENTS), sampling=Everyone, clip=mine)
    run = run_of(plan)
    opened = run.round(0)
    opened.add(np.ones((CLIENTS, SIZE)) if rows is None else rows, clients=range(CLIENTS))
    return opened.release().total.values


def honest(rows: Floats, clip_norm: float) -> Floats:
    norms: Floats = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1, clip_norm / np.maximum(norms, 1e-300))


@pytest.mark.parametrize("bounded", [True, False])
def test_a_clip_that_returns_more_than_its_bound_is_scaled_down(bounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not bounded:  # the control: a sum that takes what a clip returns
        monkeypatch.setattr(clipping, "_bounded", lambda _, rows: rows)
    one = np.eye(CLIENTS, SIZE)[:, :1] * np.ones(SIZE)  # a single client contributes
    found = total(lambda rows, clip_norm: 9 * honest(rows, clip_norm), rows=one)
    assert (float(np.linalg.norm(found)) <= C * 1.01) is bounded


def test_an_honest_clip_is_taken_as_it_is() -> None:
    assert np.linalg.norm(total(honest)) == pytest.approx(CLIENTS * C, rel=0.01)


def test_numbers_that_are_not_finite_and_rows_that_are_not_there_do_not_enter() -> None:
    assert np.abs(total(lambda rows, _: np.where(rows == 1, np.nan, rows / 10))).max() < 0.1
    for wrong in (lambda rows, _: rows[0], lambda rows, _: np.repeat(rows, 2, axis=0)):
        _extensions._REGISTERED.clear()
        register("clips", "other", wrong)
        with pytest.raises(ConfigError, match="clip = 'other': return as many rows"):
            ThirdPartyClip(name="other", clip_norm=C)


@pytest.mark.parametrize("reuses", [False, True])
def test_a_clip_that_remembers_contributions_is_refused(reuses: bool) -> None:
    """Even if it returns one buffer, which a trial would compare with itself."""
    seen, buffers = list[Floats](), dict[tuple[int, ...], Floats]()

    def remembers(rows: Floats, clip_norm: float) -> Floats:
        if rows.shape[1] == SIZE:
            seen.append(rows)
        found = honest(rows, clip_norm) / (1 + len(seen))
        buffer = buffers.setdefault(rows.shape, np.empty(rows.shape)) if reuses else found
        buffer[:] = found
        return buffer

    with pytest.raises(ConfigError, match="another result for the same input"):
        total(remembers)
    assert seen


class Coins:
    """Poisson sampling, as incrowd's own."""

    relation = ADDED

    def event(self, noise_multiplier: float, *, clients: int, cohort: float) -> DpEvent:
        return PoissonSampledDpEvent(cohort / clients, GaussianDpEvent(noise_multiplier))

    def sample(self, stream: Stream, *, clients: int, cohort: float, round: int) -> Integers:
        return Poisson(clients=clients, cohort=cohort).sample(stream, round=round)


class Changed(Coins):
    """Coins whose cohorts are changed on the way."""

    def __init__(self, change: Callable[[Integers], Any]) -> None:
        self.change = change

    def sample(self, stream: Stream, *, clients: int, cohort: float, round: int) -> Any:
        return self.change(super().sample(stream, clients=clients, cohort=cohort, round=round))


def sampled(sampler: Any, **parts: Any) -> Plan:
    register("samplers", "mine", sampler)
    return planned(sampling=ThirdPartySampling(name="mine"), **parts)


@pytest.mark.parametrize(
    "change",
    [
        lambda cohort: np.repeat(cohort, 2),
        lambda cohort: cohort[::-1],
        lambda cohort: np.append(cohort, CLIENTS),
        lambda cohort: np.append(-1, cohort),
        lambda cohort: cohort + 0.5,
        lambda cohort: cohort[None],
    ],
    ids=["twice", "falling", "beyond", "negative", "halves", "a matrix"],
)
def test_a_sampler_that_gives_no_cohort_is_refused_before_the_first_round(change: Callable[[Integers], Any]) -> None:
    run = run_of(sampled(Changed(change)))
    with pytest.raises(ConfigError, match="sampling = 'mine': return the numbers of existing clients"):
        run.cohort(0)
    assert run.ledger.charges() == (0, 0)


@pytest.mark.parametrize("seeded", [True, False])
def test_an_honest_sampler_draws_and_is_named(seeded: bool) -> None:
    plan, own = sampled(Coins()), planned()
    assert plan.runs == own.runs
    run = run_of(plan, seeded=seeded)
    opened = run.round(0)
    cohort = run.cohort(0)
    opened.add(np.ones((len(cohort), SIZE)), clients=cohort)
    opened.release()
    said = run.statement().text()
    assert "third-party code, tried on made-up input and not verified: sampler mine" in " ".join(said.split())
    assert "third-party sampler mine, 5 of 20 clients a round" in " ".join(said.split())


@pytest.mark.parametrize("checked", [True, False])
def test_a_sampler_that_looks_at_who_answered_is_refused(checked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    answered: set[int] = set()
    run = run_of(sampled(Changed(lambda cohort: np.array([c for c in cohort if c not in answered], dtype=np.int64))))
    first = run.cohort(0)
    opened = run.round(0)
    opened.add(np.ones((len(first), SIZE)), clients=first)
    opened.release()
    assert run.cohort(1).size  # nothing was looked at yet
    answered.update(range(CLIENTS))
    if not checked:  # the control: a run that draws whatever the sampler says
        monkeypatch.setattr(_extensions, "check_unchanged", lambda *_, **__: None)
        assert run.cohort(2).size == 0
        return
    with pytest.raises(ConfigError, match="another result for the same input"):
        run.cohort(2)


def test_a_sampler_with_randomness_of_its_own_is_refused() -> None:
    generator = np.random.default_rng(0)
    run = run_of(sampled(Changed(lambda _: np.unique(generator.integers(0, CLIENTS, 5)))))
    with pytest.raises(ConfigError, match="another result for the same input"):
        run.cohort(0)
    turns = iter(range(10**6))
    probes = {0: np.arange(3), 1: np.arange(3)}  # it knows the probe, and not that it draws twice

    class Knows(Coins):
        def sample(self, stream: Stream, *, clients: int, cohort: float, round: int) -> Integers:
            known = stream.bits(1)[0] == KeyedStream(bytes(32)).bits(1)[0]
            return probes[0] if known else np.array([next(turns) % clients])

    _extensions._REGISTERED.clear()
    _extensions._FIRST.clear()
    with pytest.raises(ConfigError, match="another result for the same input"):
        run_of(sampled(Knows())).cohort(0)


class Claims(Coins):
    """A sampler that states another event."""

    def __init__(self, event: Callable[[float], DpEvent], relation: Relation = ADDED) -> None:
        self.claimed, self.relation = event, relation

    def event(self, noise_multiplier: float, *, clients: int, cohort: float) -> DpEvent:
        return self.claimed(noise_multiplier)


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (lambda z: GaussianDpEvent(10 * z), ADDED),
        (lambda z: PoissonSampledDpEvent(0.1, GaussianDpEvent(2 * z)), ADDED),
        (lambda z: PoissonSampledDpEvent(0.1, LaplaceDpEvent(z)), ADDED),
        (GaussianDpEvent, Relation.REPLACE_ONE),
        (lambda z: SampledWithoutReplacementDpEvent(10 * CLIENTS, 5, GaussianDpEvent(z / 2)), Relation.REPLACE_ONE),
    ],
)
def test_a_sampler_that_states_other_noise_than_is_drawn_is_refused(
    event: Callable[[float], DpEvent], relation: Relation
) -> None:
    with pytest.raises(ConfigError, match="sampling = 'mine': its event has to be GaussianDpEvent"):
        sampled(Claims(event, relation))


def test_a_sampler_of_a_fixed_size_is_priced_for_a_client_replaced_and_keeps_its_size() -> None:
    def claimed(z: float) -> DpEvent:
        return SampledWithoutReplacementDpEvent(CLIENTS, 5, GaussianDpEvent(z / 2))

    with pytest.raises(ConfigError, match="as many as its event states"):
        run_of(sampled(Claims(claimed, Relation.REPLACE_ONE))).cohort(0)
    _extensions._REGISTERED.clear()

    class First(Claims):
        def sample(self, stream: Stream, *, clients: int, cohort: float, round: int) -> Integers:
            return np.arange(int(cohort))

    plan = sampled(First(claimed, Relation.REPLACE_ONE))
    sampler = plan.round(0).sampler
    assert (plan.relation, sampler.expected_cohort) == (Relation.REPLACE_ONE, 5.0)


class Times:
    """An accountant that claims so many times the tightest of incrowd's."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def epsilon(self, event: DpEvent, delta: float, *, relation: Relation) -> float:
        return self.factor * price(event, delta=delta, relation=relation).epsilon

    def delta(self, event: DpEvent, epsilon: float, *, relation: Relation) -> float:
        return self.factor * delta_at(event, epsilon=epsilon, relation=relation)


@pytest.mark.parametrize("names", [("mine",), (*ACCOUNTANTS, "mine")])
def test_an_accountant_that_claims_nothing_lowers_no_price(names: tuple[str, ...]) -> None:
    register("accountants", "mine", Times(0))
    budget = Budget(epsilon=2.0, delta=1e-5)
    ours = price(EVENT, delta=1e-5, relation=ADDED).epsilon
    assert price(EVENT, delta=1e-5, relation=ADDED, accountants=names).epsilon == ours > 0
    delta = delta_at(EVENT, epsilon=0.1, relation=ADDED)
    assert delta_at(EVENT, epsilon=0.1, relation=ADDED, accountants=names) == delta > 0
    assert smallest_noise(GaussianDpEvent, budget=budget, relation=ADDED, accountants=names) == smallest_noise(
        GaussianDpEvent, budget=budget, relation=ADDED
    )
    unknown = SampledWithoutReplacementDpEvent(9, 3, LaplaceDpEvent(1.0))
    with pytest.raises(UnpricedEvent):
        price(unknown, delta=1e-5, relation=Relation.REPLACE_ONE, accountants=names)


def test_an_accountant_that_claims_more_raises_the_price_and_is_named() -> None:
    """The control: an honest upper bound counts."""
    register("accountants", "mine", Times(2))
    found = price(EVENT, delta=1e-5, relation=ADDED, accountants=(*ACCOUNTANTS, "mine"))
    assert found.accountant == "mine"
    assert found.epsilon == 2 * price(EVENT, delta=1e-5, relation=ADDED).epsilon
    budget = Budget(epsilon=3.0, delta=1e-3)
    everyone: dict[str, Any] = {"sampling": Everyone, "schedule": constant(rounds=3, cohort=CLIENTS)}
    plan = planned(budget, accountants=("mine",), **everyone)
    assert plan.noise_multiplier > planned(budget, **everyone).noise_multiplier
    run = run_of(plan)
    run.round(0).release()
    assert "not verified: accountant mine" in " ".join(run.statement().text().split())
    records = PlanConfig.of_records(records=50, rounds=2, clip_norm=1.0, noise_multiplier=9.0)
    plan = PlanConfig(**{**vars(records), "accountants": ("mine",)}).plan(Budget(epsilon=9.0, delta=1e-5))
    ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    silo = RecordRun(plan, ledger=ledger, randomness=SeededRandomness(1))
    silo.round(0)
    assert "not verified: accountant mine" in " ".join(silo.statement().text().split())


def test_an_accountant_that_fails_gives_no_price() -> None:
    for factor in (float("nan"), -1.0):
        register("accountants", f"times {factor}", Times(factor))
        with pytest.raises(AccountingError, match="so there is no price"):
            price(EVENT, delta=1e-5, relation=ADDED, accountants=(f"times {factor}",))


def test_a_plan_with_a_part_that_is_not_installed_is_refused_and_nothing_is_imported() -> None:
    register("clips", "mine", honest)
    register("accountants", "mine", Times(1))
    plan = sampled(Coins(), clip=ThirdPartyClip(name="mine", clip_norm=C), accountants=("mine",))
    form = forms.to_json(plan)
    forms.check_ours(plan)
    assert forms.from_json(form) == plan  # the control: where all of them are
    for kind, field in (("clips", "clip"), ("samplers", "sampling"), ("accountants", "accountants")):
        kept = _extensions._REGISTERED.pop((kind, "mine"))
        with pytest.raises(ConfigError, match=rf"{field} = 'mine': .*one package .* entry points incrowd\.{kind}"):
            forms.from_json(form)
        _extensions._REGISTERED[kind, "mine"] = kept
    key = Ed25519PrivateKey.generate()
    frame = Offer.of_plan(plan, size=SIZE).to_bytes(key)
    assert Offer.read(frame, key=key.public_key()).plan == plan
    kept = _extensions._REGISTERED.pop(("samplers", "mine"))
    with pytest.raises(ConfigError, match="sampling = 'mine': install exactly one package"):
        _ = Offer.read(frame, key=key.public_key()).plan
    _extensions._REGISTERED["samplers", "mine"] = kept
    with pytest.raises(ConfigError, match="clip = 'os:system'"):
        forms.from_json({**form, "clip": {**form["clip"], "name": "os:system"}})
    with pytest.raises(ConfigError, match="another extension of incrowd"):
        register("clips", "mine", lambda rows, _: rows)


def test_a_plan_that_is_only_read_draws_no_cohort() -> None:
    """A server could name so many clients that a party's memory ends."""
    drawn: list[int] = []

    def noted(cohort: Integers) -> Integers:
        drawn.append(cohort.size)
        return cohort

    plan = sampled(Changed(noted))
    assert forms.from_json(forms.to_json(plan)) == plan
    assert not drawn
    run_of(plan).cohort(0)  # the control
    assert drawn


class Drifting(Sgd):
    """A local algorithm; the `fault` decides what it does to the clients after this one."""

    def __init__(self, local: Local, fault: str) -> None:
        super().__init__(local)
        self.fault = fault

    def sends(self, size: int) -> int:
        return size * self.fault.startswith("sends")

    def train(self, client: ClientAtWork, shared: Sequence[Tensor]) -> Sequence[Tensor]:
        super().train(client, shared)
        if self.fault == "moves the start":
            client.starts[0].copy_(client.parameters[0].detach())
        return () if self.fault == "sends nothing" else shared


def drifted(fault: str) -> dict[int, Floats]:
    """The updates of two clients, one after the other."""
    data = Clients.from_arrays(np.eye(4, 2, dtype=np.float32), [0, 1, 1, 0], owner=[0, 0, 1, 1], classes=2, public=True)
    local, model = Local(learning_rate=0.5), Model(nn.Linear(2, 2))
    engine = CohortEngine(model, ClientTensors.of(data), local, algorithm=Drifting(local, fault))
    start = torch.cat([model.weights, torch.zeros(engine.size - model.size)])
    chunks = engine.train(start, [0, 1], randomness=SeededRandomness(seed=1), round=0)
    return {client: row for chunk in chunks for client, row in zip(chunk.clients, chunk.rows(), strict=True)}


def test_a_local_algorithm_that_moves_what_others_start_from_is_refused() -> None:
    assert len(drifted("none")) == 2  # the control
    with pytest.raises(ConfigError, match="leave starts and shared as they are"):
        drifted("moves the start")


def test_a_local_algorithm_that_sends_less_than_it_says_is_refused() -> None:
    assert not np.concatenate(list(drifted("sends zeros").values())).reshape(2, 2, -1)[:, 1].any()  # the control
    with pytest.raises(ConfigError, match="return 6 further values"):
        drifted("sends nothing")


class Numbered:
    """A feature map whose last feature says how many calls came before, if it counts them."""

    name = "numbered"

    def __init__(self, *, counts: bool) -> None:
        self.counts, self.calls = counts, 0

    def __call__(self, values: Floats) -> Floats:
        self.calls += self.counts
        return np.concatenate([values.reshape(len(values), -1), np.full((len(values), 1), 1e-9 * self.calls)], axis=1)


def mapped(folder: Path, **settings: Any) -> Any:
    privacy = {"epsilon": 8.0, "delta": 1e-3, "rounds": 2}
    tables = {"data": {"name": "digits", "clients": 10}, "privacy": privacy, **settings}
    return Federation.from_tables(tables).train(folder, progress=False)


def test_a_feature_map_that_remembers_examples_is_refused(tmp_path: Path) -> None:
    register("feature_maps", "numbered", Numbered)
    features: dict[str, Any] = {"name": "map", "map": "numbered", "arguments": {"counts": False}}
    assert "feature map numbered" in str(mapped(tmp_path / "honest", features=features).statement)  # the control
    features["arguments"] = {"counts": True}
    with pytest.raises(ConfigError, match="it remembers what it was called with"):
        mapped(tmp_path / "counting", features=features)


def test_a_tracker_hears_public_values_alone(tmp_path: Path) -> None:
    heard = list[Any]()

    class Spy(Watched):
        def start(self, settings: Any, past: Any) -> None:
            heard.append((settings["config"], list(past)))

        def round(self, record: Any) -> None:
            heard.append(record)

        def end(self, summary: Any) -> None:
            heard.append(summary)

    register("trackers", "spy", lambda _: Spy())
    privacy: dict[str, Any] = {"unit": "record", "epsilon": 8.0, "delta": 1e-3, "rounds": 2, "room": 50.0}
    privacy["ledger"] = str(tmp_path / "CANARY")
    silos = {"data": {"name": "digits", "clients": 2}, "privacy": privacy}

    def begun(name: str, **how: Any) -> Run:
        heard.clear()
        return Federation.from_tables(silos | {"run": {"trackers": ["spy"], **how}}).start(tmp_path / name)

    watched = Watched()
    for name, how in (("earnest", {}), ("seeded", {"randomness": "seeded", "seed": 7})):
        begun(name, **how).train([watched])
        assert "CANARY" not in str(heard)
        assert "seed" not in heard[0][0]["run"]
        assert [record.silos for record in heard[1:-1]] == [None, None]
        assert watched.records[-1].silos is not None  # the control: the run itself knows


class Watched:
    """A watcher of the program's own, which hears all."""

    def __init__(self) -> None:
        self.records = list[Any]()

    def start(self, settings: Any, past: Any) -> None: ...

    def round(self, record: Any) -> None:
        self.records.append(record)

    def end(self, summary: Any) -> None: ...
