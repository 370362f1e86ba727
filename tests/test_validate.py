import inspect
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from incrowd import _validate, errors
from incrowd.errors import ConfigError, DataError, IncrowdError

Check = Callable[..., None]
NOT_FINITE_NUMBERS = [math.nan, math.inf, -math.inf, True, False, "1", None, 1j, [1]]
EPSILON = 2.0**-40

ACCEPTED: list[tuple[Check, list[object]]] = [
    (_validate.number, [0, -1.5, 10**300, Fraction(1, 3), np.float32(2), np.int64(-2)]),
    (_validate.positive, [EPSILON, 1, np.float64(3), Fraction(1, 3)]),
    (_validate.non_negative, [0, 0.0, -0.0, 5]),
    (_validate.below_one, [0, 0.5, 1 - EPSILON]),
    (_validate.fraction, [EPSILON, 0.5, 1 - EPSILON]),
    (_validate.probability, [EPSILON, 0.5, 1, 1.0]),
    (_validate.count, [1, 2, np.int32(7)]),
    (_validate.natural, [0, 1, np.int32(7), 2**100]),
]
REFUSED: list[tuple[Check, list[object], str]] = [
    (_validate.number, [10**400, -(10**400)], "give a finite number"),
    (_validate.positive, [0, -0.0, -EPSILON], "give a number above 0"),
    (_validate.non_negative, [-EPSILON], "give a number of at least 0"),
    (_validate.below_one, [-EPSILON, 1], "give a number of at least 0 and below 1"),
    (_validate.fraction, [0, 1, 1 + EPSILON, -0.5], "give a number between 0 and 1, both excluded"),
    (_validate.probability, [0, 1 + EPSILON, -0.5], "give a number above 0 and at most 1"),
    (_validate.count, [0, -1, 1.0, Fraction(1), np.float64(2)], "give a whole number of at least 1"),
    (_validate.natural, [-1, 0.0, 1.5], "give a whole number of at least 0"),
]


@pytest.mark.parametrize(("check", "values"), ACCEPTED)
def test_good_values_pass(check: Check, values: list[object]) -> None:
    check(**{f"field{i}": value for i, value in enumerate(values)})


@pytest.mark.parametrize(("check", "values", "remedy"), REFUSED)
def test_bad_values_are_refused_with_field_value_and_remedy(check: Check, values: list[object], remedy: str) -> None:
    for value in values:
        with pytest.raises(ConfigError) as caught:
            check(first=0.5 if check in (_validate.below_one, _validate.fraction) else 1, second=value)
        assert str(caught.value) == f"second = {value!r}: {remedy}"


@pytest.mark.parametrize("value", NOT_FINITE_NUMBERS, ids=repr)
@pytest.mark.parametrize("check", [check for check, _ in ACCEPTED])
def test_what_is_not_a_finite_number_is_refused_everywhere(check: Check, value: object) -> None:
    with pytest.raises(ConfigError, match=r"^field = .*: give a "):
        check(field=value)


def test_limits_have_names() -> None:
    _validate.at_most(5, "the number of clients", cohort=5, groups=1)
    with pytest.raises(ConfigError, match=r"^cohort = 6: give at most the number of clients, which is 5$"):
        _validate.at_most(5, "the number of clients", cohort=6)


def test_everything_raised_on_purpose_has_one_root() -> None:
    for error in (value for value in vars(errors).values() if inspect.isclass(value)):
        assert issubclass(error, IncrowdError)
        assert error.__doc__
    assert issubclass(ConfigError, ValueError)
    assert issubclass(DataError, ValueError)
