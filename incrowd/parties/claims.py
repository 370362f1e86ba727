"""Compares the answers and claims of silos with their plans: the server recomputes all that it can."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from incrowd.algorithms.silos import Answer
from incrowd.errors import DataError, IncrowdError
from incrowd.privacy.account.accounting import ACCOUNTANTS, Price, price
from incrowd.privacy.account.events import compose
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism import grid
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.statement import FORGOTTEN, Statement
from incrowd.settings import Descent

UNSAID = (
    "the silo has not said this itself: it is what the answers that it gave come to by its plan. "
    "Rounds that it paid for and lost, and what others spent on its records, are not in epsilon"
)

LARGEST = 1e18
"""No update is longer than this, whatever its settings are: weights stay finite in float32 for any number of rounds."""

_TOLERANCE = 1e-6  # for epsilons, which another kind of processor may round otherwise
_CAVEATS, _LONGEST = 20, 500


def longest_update(plan: Plan, *, size: int, descent: Descent, start: float = 0.0) -> float:
    """A bound on the norm of an update of so many numbers, from weights of the norm `start`.

    In a step a silo moves along a sum of clipped gradients and noise. Noise of d numbers is longer than sqrt(d) + t
    deviations with probability e^(-t^2 / 2), and a batch exceeds this bound with less than 10^-20. Momentum makes a
    step at most 1 / (1 - momentum) times as long, and weight decay moves towards 0.

    Edge cases: never more than `LARGEST`.
    """
    training = plan.training()
    expected = training.expected_batch
    batch = min(training.most_records, expected + 10 * math.sqrt(expected) + 50)
    noise = 1.01 * training.noise_multiplier * (math.sqrt(size) + grid.REACH)
    pull = training.sensitivity * (batch + noise) / expected
    rate, decay = descent.learning_rate / (1 - descent.momentum), descent.weight_decay
    rounding, moved = 2.0**-22, 0.0
    for _ in range(training.steps):
        moved = (1 + rounding) * moved + rate * (pull + decay * (start + moved)) + rounding * start
        if moved > LARGEST:
            return LARGEST
    return 1.01 * moved


def check_answer(answer: Answer, plan: Plan, *, descent: Descent, start: float) -> None:
    """Refuse (`DataError`) an answer that a silo with this plan cannot give, to weights of the norm `start`."""
    if answer.update is None:
        return
    size = answer.update.size
    longest = longest_update(plan, size=size, descent=descent, start=start)
    with np.errstate(over="ignore"):
        norm = math.sqrt(np.dot(answer.update, answer.update))
    if not norm <= longest:
        raise DataError(f"an update longer than its plan can give, {longest:.4g}")


def recomputed(plan: Plan, answered: int) -> Statement:
    """A silo's statement, recomputed from the number of its answers."""
    said, cost = _stated(plan), _price(plan, answered)
    return replace(said, epsilon=cost.epsilon, accountant=cost.accountant, caveats=(UNSAID, *said.caveats))


def checked_statement(form: object, plan: Plan, *, answered: int) -> Statement:
    """A silo's own statement, checked against the number of its answers.

    Guarantee: its words are the plan's, or weaker; its epsilon is at least the epsilon of the answered rounds.

    Edge cases: everything else is a `DataError`.
    """
    said = _read(form)
    ours = _stated(plan)
    for name in ("unit", "relation", "trust", "delta", "sampler", "assumed", "not_covered"):
        if getattr(said, name) != getattr(ours, name):
            raise DataError(f"a statement whose {name} is not the plan's")
    if not set(ours.caveats) <= set(said.caveats):
        raise DataError("a statement that leaves out what weakens it")
    cost = _price(plan, answered).epsilon
    if not cost * (1 - _TOLERANCE) <= said.epsilon < math.inf:
        raise DataError(f"a statement of epsilon = {said.epsilon:.6g}, and its rounds come to {cost:.6g}")
    return said


def _read(form: object) -> Statement:
    if not isinstance(form, Mapping) or not _is_plain(form):
        raise DataError("a statement that is none")
    try:
        return Statement.from_json(form)
    except (IncrowdError, ArithmeticError, KeyError, StopIteration, TypeError, ValueError) as error:
        raise DataError("a statement that is not whole, or says two things") from error


def _is_plain(form: Mapping[str, Any]) -> bool:
    """The facts have the kinds that facts have, and words are few enough to be read."""
    texts = [form.get(name) for name in ("unit", "trust", "accountant", "sampler")]
    numbers = [form.get(name) for name in ("epsilon", "delta")]
    lists = [form.get(name) for name in ("assumed", "not_covered", "caveats")]
    if not all(isinstance(each, list) and len(each) <= _CAVEATS for each in lists):
        return False
    texts += [text for each in lists if isinstance(each, list) for text in each]
    return (
        all(isinstance(text, str) and len(text) <= _LONGEST and text.isprintable() for text in texts)
        and all(isinstance(each, float | int) and not isinstance(each, bool) and 0 <= each < 1e300 for each in numbers)
        and form.get("accountant") in ACCOUNTANTS
    )


def _stated(plan: Plan) -> Statement:
    """The statement of a silo that has spent nothing."""
    nothing = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    said = plan.statement(nothing, own=0)
    return replace(said, caveats=tuple(caveat for caveat in said.caveats if caveat != FORGOTTEN))


def _price(plan: Plan, answered: int) -> Price:
    event = compose([(plan.round(0).event, answered)] if answered else [])
    return price(event, delta=plan.budget.delta, relation=plan.relation)
