import pytest

from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.account.accounting import Budget, Relation, price
from incrowd.privacy.plan.planner import Question, signal
from incrowd.privacy.plan.sampling import Everyone, FixedSize

KNOWN = {"rounds": 20, "cohort": 100, "noise_multiplier": 1.2, "epsilon": 3.0, "delta": 1e-5}


@pytest.mark.slow
def test_one_more_round_or_client_would_not_fit() -> None:
    for unknown, field in (("rounds", "rounds"), ("cohort", "cohort")):
        plan = Question(clients=1000, **KNOWN | {unknown: None}).answer()  # type: ignore[arg-type]  # numbers by name
        step = plan.config.schedule.steps[0]
        more = KNOWN | {field: getattr(step, field) + 1, "epsilon": None}
        assert plan.price.epsilon <= 3.0 < Question(clients=1000, **more).answer().price.epsilon  # type: ignore[arg-type]  # numbers by name


def test_everyone_needs_no_cohort_and_fixed_size_gets_a_whole_one() -> None:
    everyone = Question(clients=50, rounds=4, epsilon=3.0, delta=1e-5, sampling=Everyone).answer()
    assert everyone.config.schedule.steps[0].cohort == 50
    fixed = Question(clients=500, rounds=2, noise_multiplier=3.0, epsilon=3.0, delta=1e-5, sampling=FixedSize).answer()
    assert fixed.config.schedule.steps[0].cohort == int(fixed.config.schedule.steps[0].cohort)


def test_hardly_any_delta_is_still_one_that_can_be_promised() -> None:
    quiet = Question(clients=10, rounds=1, cohort=10, noise_multiplier=100.0, epsilon=8.0).answer()
    assert quiet.budget.delta == 1e-30
    assert quiet.price.epsilon <= 8.0


def test_an_accountant_can_be_named() -> None:
    pld, rdp = (
        Question(clients=1000, **KNOWN | {"noise_multiplier": None}, accountants=(name,)).answer()  # type: ignore[arg-type]  # numbers by name
        for name in ("PLD", "RDP")
    )
    assert rdp.price.accountant == "RDP"
    assert rdp.noise_multiplier > pld.noise_multiplier
    cost = price(rdp.event, delta=1e-5, relation=Relation.ADD_OR_REMOVE_ONE, accountants=("RDP",))
    assert 3.0 * (1 - 1e-3) < cost.epsilon <= 3.0


def test_exactly_one_number_must_be_unknown() -> None:
    for missing in ([], ["rounds", "cohort"]):
        question = Question(clients=1000, **KNOWN | dict.fromkeys(missing))  # type: ignore[arg-type]  # numbers by name
        with pytest.raises(ConfigError, match="leave out exactly one"):
            question.answer()
        if missing:
            with pytest.raises(ConfigError, match="only one number can be unknown"):
                question.config()


def test_a_question_without_an_answer_says_so() -> None:
    with pytest.raises(BudgetExceeded):
        Question(clients=10, noise_multiplier=0.1, cohort=10, epsilon=0.1, delta=1e-6).answer()


def test_the_signal_is_that_of_one_release_about_everyone() -> None:
    budget = Budget(epsilon=8.0, delta=1e-3)
    assert signal(100, budget) == pytest.approx(208.33, abs=0.01)  # 100 times mu, of which (8, 1e-3) is the price
    assert signal(300, budget) == pytest.approx(3 * signal(100, budget), rel=1e-6)
