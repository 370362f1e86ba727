"""A copy of a specification that states another promise, and keeps what was computed for the first one.

Who gains: a service that changes the epsilon that devices are told, and not the noise that they add.
"""

import pytest

from incrowd import Specification
from incrowd.errors import ConfigError
from tests.drawdiscard.mail import KEYS

FIRST = Specification.from_formula("opened ~ sender * words", **{**KEYS, "epsilon": 8.0})


def test_a_copy_has_the_noise_and_the_fingerprint_of_what_it_states() -> None:
    before = FIRST.fingerprint, FIRST.mechanism.epsilon, FIRST.size
    copy = FIRST.model_copy(update={"epsilon": 1.0})
    fresh = Specification.from_json(copy.to_json())
    assert (copy.epsilon, copy.mechanism.epsilon) == (1.0, 1.0)
    assert copy.fingerprint == fresh.fingerprint != before[0]
    assert (FIRST.fingerprint, FIRST.mechanism.epsilon, FIRST.size) == before


def test_control_a_copy_without_changes_is_equal() -> None:
    copy = FIRST.model_copy(deep=True)
    assert copy == FIRST
    assert copy.fingerprint == FIRST.fingerprint


def test_a_copy_cannot_state_what_no_specification_may() -> None:
    with pytest.raises(ConfigError, match="epsilon"):
        FIRST.model_copy(update={"epsilon": -1.0})
