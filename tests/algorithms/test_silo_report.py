"""A silo's report of a model: noised, paid for from the silo's own ledger, and never more than its budget."""

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

from incrowd._random import Floats, SystemRandomness
from incrowd.algorithms.counts import Counter, accuracy_std, figures
from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.account.accounting import price
from tests.algorithms.silos import BUDGET, CLASSES, MODEL, ROUNDS, paying, plan, records, silo

pytestmark = pytest.mark.usefixtures("one_thread")

STD = 6.0
WEIGHTS = np.random.default_rng(0).normal(size=MODEL.size)


def exact() -> Floats:
    return Counter(model=MODEL, records=records()).table(WEIGHTS, classes=CLASSES)


def test_the_table_counts_every_record_once_in_the_row_of_its_class() -> None:
    held, found = records(count=23), np.zeros((CLASSES, CLASSES + 1))
    module = MODEL.with_weights(WEIGHTS)
    for features, label in zip(held.features, held.labels, strict=True):  # the slow way
        found[int(label), int(module(features[None]).argmax())] += 1
    table = Counter(model=MODEL, records=held).table(WEIGHTS, classes=CLASSES)
    assert (table == found).all()
    assert table.sum() == 23
    fewer = Counter(model=MODEL, records=records(count=1)).table(WEIGHTS, classes=CLASSES)
    assert np.linalg.norm(fewer) == 1.0  # one record moves the table by 1: what the noise hides


def test_a_report_is_noised_and_charged_to_the_silo_s_ledger() -> None:
    its = silo(paying(plan(report_std=STD)))
    table = its.report(WEIGHTS, classes=CLASSES)
    assert table is not None
    off = (table - exact()).ravel()
    assert (off != 0).all()
    assert 0.4 * STD < np.sqrt(np.mean(off**2)) < 2 * STD
    alone = price(GaussianDpEvent(STD), delta=BUDGET.delta, relation=its.run.plan.relation).epsilon
    assert its.epsilon == pytest.approx(alone)
    assert "and one table of counts at the end" in " ".join(its.statement().text().split())
    assert not any("charges of other runs" in caveat for caveat in its.statement().caveats)


def test_rounds_leave_room_for_it_and_all_together_keep_the_budget() -> None:
    its, without = silo(paying(plan(report_std=STD))), silo()
    assert its.run.plan.noise_multiplier > without.run.plan.noise_multiplier
    spent = [its.answer(number, WEIGHTS).epsilon for number in range(ROUNDS)]
    assert spent[-1] < BUDGET.epsilon
    assert its.run.ledger.promised().epsilon <= BUDGET.epsilon
    assert its.report(WEIGHTS, classes=CLASSES) is not None
    assert spent[-1] < its.epsilon <= BUDGET.epsilon
    assert its.epsilon == pytest.approx(BUDGET.epsilon, rel=1e-3)


def test_a_report_is_charged_once_and_lost_where_its_noise_cannot_be_repeated() -> None:
    seeded = silo(paying(plan(report_std=STD)))
    first = seeded.report(WEIGHTS, classes=CLASSES)
    again = seeded.report(WEIGHTS, classes=CLASSES)
    assert first is not None
    assert again is not None
    assert (first == again).all()
    earnest = silo(paying(plan(report_std=STD), randomness=SystemRandomness()))
    assert earnest.report(WEIGHTS, classes=CLASSES) is not None
    spent = earnest.epsilon
    assert earnest.report(WEIGHTS, classes=CLASSES) is None
    assert earnest.epsilon == spent


def test_a_ledger_without_room_for_it_gives_no_report_and_spends_nothing() -> None:
    its = silo(paying(plan(report_std=STD)))
    its.run.ledger.charge(its.run.plan.round(0).event)
    spent = its.epsilon
    assert its.report(WEIGHTS, classes=CLASSES) is None
    assert its.epsilon == spent


def test_a_plan_without_a_report_releases_none() -> None:
    its = silo()
    assert its.report(WEIGHTS, classes=CLASSES) is None
    plan().check_report(10**9)  # no noise has to fit
    assert its.epsilon == 0.0


def test_noise_that_fits_no_grid_is_refused_before_anything_is_spent() -> None:
    with pytest.raises(ConfigError):
        plan(report_std=1e15).check_report(CLASSES * (CLASSES + 1))
    with pytest.raises(ConfigError, match="report_std = 0"):
        plan(report_std=0)
    with pytest.raises((BudgetExceeded, ConfigError)):
        plan(report_std=0.1)  # so little noise that it would cost more than the budget


def test_figures_are_those_of_the_table() -> None:
    found = figures(np.array([[8.0, 2.0, 0.0], [1.0, 9.0, 0.0]]), std=2.0)
    assert found["accuracy"] == 17 / 20
    assert found["balanced_accuracy"] == pytest.approx((0.8 + 0.9) / 2)
    assert found["recall"] == [0.8, 0.9]
    assert found["f1"] == pytest.approx([16 / 19, 18 / 21])
    assert found["records"] == 20
    empty = figures(np.array([[-3.0, -1.0, 0.0], [0.0, 0.0, -2.0]]), std=2.0)
    assert empty["accuracy"] is empty["accuracy_std"] is empty["macro_f1"] is None


def test_the_deviation_of_the_accuracy_is_the_one_that_noise_gives() -> None:
    table, std = np.array([[400.0, 60.0, 0.0], [90.0, 450.0, 0.0]]), 5.0
    generator = np.random.default_rng(1)
    # The last column is 0: half of its noise is cut off, so only columns of records are noised here.
    drawn = [table[:, :2] + generator.normal(scale=std, size=(2, 2)) for _ in range(20000)]
    seen = np.std([np.trace(one) / one.sum() for one in drawn])
    assert accuracy_std(0.85, 1000.0, cells=4, right=2) * std == pytest.approx(seen, rel=0.05)
