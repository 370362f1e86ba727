"""What is handed over, kept, copied by a fork, or taken twice in one process never tells more than was paid for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import incrowd
from incrowd import _extensions, _files
from incrowd._random import Floats, SeededRandomness, SystemRandomness
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import FixedClip, MedianClip, ThirdPartyClip
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, constant
from incrowd.privacy.release import PrivateRound, PrivateRun
from tests.privacy.ledgers import start, status_of

pytestmark = pytest.mark.watched

BUDGET = Budget(epsilon=4.0, delta=1e-5)


def opened(config: PlanConfig, *, size: int = 2, system: bool = False) -> PrivateRound:
    plan = config.calibrate(BUDGET)
    ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
    randomness = SystemRandomness() if system else SeededRandomness(1)
    return PrivateRun(plan, ledger=ledger, randomness=randomness, size=size).round(0)


def of_clients(clip: Any, **changes: Any) -> PlanConfig:
    return PlanConfig(members=30, schedule=constant(rounds=2, cohort=30), sampling=Everyone, clip=clip, **changes)


def of_records() -> tuple[PrivateRound, Plan]:
    config = PlanConfig(
        members=40,
        schedule=constant(rounds=2, cohort=40.0),
        unit="record",
        noise_by="server",
        clip=FixedClip(clip_norm=1.0),
    )
    found = opened(config)
    return found, found._run.plan


# Receipts


def test_a_fork_copies_no_paid_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """One charge would pay for the noise of every child."""
    local = opened(of_clients(FixedClip(clip_norm=1.0), noise_by="party"), system=True)
    local.add(np.ones((1, 2)), clients=[0])

    def draws(refused: bool, client: int = 1) -> None:
        try:
            local.add(np.ones((1, 2)), clients=[client])
        except ConfigError:
            assert refused
            return
        assert not refused

    assert status_of(start(lambda: draws(refused=True))) == 0
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("incrowd.privacy.ledger.tally.os.getpid", lambda: -1)
        draws(refused=True, client=2)
    draws(refused=False)  # the control: in its own process it is paid for


# What is handed over


def test_a_sum_that_a_silo_handed_over_stays_its_own() -> None:
    """What it kept was the sum of all silos, before noise."""
    found, plan = of_records()
    kept = plan.training(2).whole(np.array([1.0, 0.0]))
    found.add_records(kept, silo=0, records=20)
    found.add_records(plan.training(2).whole(np.array([0.0, 7.0])), silo=1, records=20)
    assert np.allclose(kept.values, [1.0, 0.0])


def test_a_sum_that_is_changed_after_it_was_checked_enters_as_it_was() -> None:
    found, plan = of_records()
    part = plan.training(2).whole(np.array([1.0, 0.0]))
    found.add_records(part, silo=0, records=20)
    part.steps[:] = int(1e6 / part.step)
    assert np.abs(found.release().total.values).max() < 1e3


@pytest.mark.parametrize("kind", [np.float64, np.uint64])
def test_steps_that_are_no_whole_numbers_of_64_bits_are_refused_before_the_charge(kind: type[Any]) -> None:
    found, plan = of_records()
    part = plan.training(2).whole(np.array([1.0, 0.0]))
    with pytest.raises(DataError, match="int64"):
        found.add_records(Whole(steps=part.steps.astype(kind), step=part.step), silo=0, records=20)
    found.add_records(part, silo=0, records=20)  # the control


@pytest.mark.parametrize("clip", [MedianClip(), FixedClip(clip_norm=1.0)])
def test_a_buffer_that_is_used_again_counts_for_nobody_twice(clip: Any) -> None:
    found, buffer = opened(of_clients(clip)), np.zeros((1, 2))
    for client in range(30):
        buffer[:] = [[0.0, 1.0]] if client < 29 else [[1.0, 0.0]]
        found.add(buffer, clients=[client])
    total = found.release().total.values
    assert abs(total[1] - 29) < 12 > abs(total[0] - 1)


# Code of others


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    monkeypatch.setattr(_extensions, "_REGISTERED", {})
    return lambda name, function: _extensions.register("clips", name, function)


@pytest.mark.parametrize("reuses", [True, False])
def test_a_clip_that_remembers_is_refused_even_if_it_returns_one_buffer(
    registered: Callable[[str, Any], None], reuses: bool
) -> None:
    """The trial compared the buffer with itself."""
    seen, buffers = [False], dict[Any, Floats]()

    def clip(rows: Floats, bound: float) -> Floats:
        found = FixedClip(clip_norm=bound).clip(rows) * (-1 if seen[0] else 1)
        seen[0] |= bool((rows == 5).any())
        if not reuses:
            return found
        buffer = buffers.setdefault(rows.shape, np.empty(rows.shape))
        buffer[:] = found
        return buffer

    registered(f"remembers-{reuses}", clip)
    found = opened(of_clients(ThirdPartyClip(name=f"remembers-{reuses}", clip_norm=1.0)))
    found.add(np.ones((1, 2)), clients=[0])  # the control: nothing to remember yet
    with pytest.raises(ConfigError, match="another result"):
        found.add(np.array([[5.0, 1.0]]), clients=[1])


def test_statements_keep_the_names_of_all_third_party_code(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    parts = {"a": (rows[:30], (rows[:30, 0] > 0).astype(int)), "b": (rows[30:], (rows[30:, 0] > 0).astype(int))}
    data = incrowd.Clients.from_partitions(parts, classes=2, public=True)

    def odd(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, labels)

    for noise_by in ("server", "party"):
        privacy = incrowd.Private(unit="record", noise_by=noise_by, epsilon=8, delta=1e-3, rounds=1)
        federation = incrowd.Federation(nn.Linear(3, 2), data, privacy=privacy, loss=odd)
        assert "loss odd" in str(federation.train(tmp_path / noise_by, progress=False).statement)
        plain = incrowd.Federation(nn.Linear(3, 2), data, privacy=privacy)
        assert "third-party" not in str(plain.train(tmp_path / f"plain-{noise_by}", progress=False).statement)


# Two loops in one process


def test_a_folder_is_locked_for_the_process_that_holds_it_too(tmp_path: Path) -> None:
    """Closing the second file would let go of the first one's lock."""
    lock = tmp_path / "lock"

    def enter(refused: bool) -> None:
        try:
            with _files.alone(lock, what="trains"):
                assert not refused
        except ConfigError:
            assert refused

    with _files.alone(lock, what="trains"):
        enter(refused=True)
        assert status_of(start(lambda: enter(refused=True))) == 0
    enter(refused=False)  # the control


# Cohorts that do not please


def test_a_reservation_that_is_given_back_pays_for_the_cohorts_that_it_drew(tmp_path: Path) -> None:
    """Who drew again under another label until a client was in would pay for a sample and take that client surely."""
    plan = PlanConfig(members=100, schedule=constant(rounds=3, cohort=1)).calibrate(BUDGET)
    roomy = Budget(epsilon=40.0, delta=1e-5)
    with Ledger.open(tmp_path / "ledger", budget=roomy, relation=plan.relation, data_identity="x") as ledger:
        runs = [
            PrivateRun(plan, ledger=ledger, randomness=SystemRandomness(), size=2, label=f"try {number}")
            for number in range(2)
        ]
        runs[0].cohort(1)
        ledger.release_reservation("try 0")
        assert ledger.charges()[0] == 2  # rounds 0 and 1: both could be known by now
        runs[1].round(0).release()
        ledger.release_reservation("try 1")  # the control: nothing is drawn and not charged
        assert ledger.charges()[0] == 3
        assert ledger.reservation("try 1").released
