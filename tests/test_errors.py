import inspect

import pytest

from incrowd import errors
from incrowd.errors import ConfigError, DataError, IncrowdError

ALL = [value for value in vars(errors).values() if inspect.isclass(value)]


@pytest.mark.parametrize("error", ALL)
def test_everything_raised_on_purpose_has_one_root(error: type[Exception]) -> None:
    assert issubclass(error, IncrowdError)
    assert error.__doc__


@pytest.mark.parametrize("error", [ConfigError, DataError])
def test_bad_values_and_bad_data_are_value_errors_too(error: type[Exception]) -> None:
    assert issubclass(error, ValueError)


def test_a_config_error_names_field_value_and_remedy() -> None:
    error = ConfigError(field="delta", value=2.0, remedy="give less")
    assert str(error) == "delta = 2.0: give less"
    assert (error.field, error.value, error.remedy) == ("delta", 2.0, "give less")
