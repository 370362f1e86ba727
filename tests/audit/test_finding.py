"""What an audit says is what it found."""

import json

import pytest

from incrowd.audit.bounds import Audited, Check, Finding


def finding(**given: object) -> Finding:
    return Finding(**{"attack": "guess", "unit": "client", "claimed": 2.0, "delta": 1e-5, "trials": 2000, **given})  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        ({}, True),
        ({"lower_bound": 2.0}, True),
        ({"lower_bound": 2.1}, False),
        ({"lower_bound": 2.1, "sure_bound": 1.9}, True),
        ({"lower_bound": 2.1, "claimed": None}, True),
        ({"true_positives": 0.1, "allowed": 0.2}, True),
        ({"true_positives": 0.21, "allowed": 0.2}, True),
        ({"true_positives": 0.3, "allowed": 0.2}, False),
        ({"true_positives": 0.3}, True),
    ],
)
def test_a_promise_stands_unless_more_is_proven(given: dict[str, object], holds: bool) -> None:
    assert finding(**given).holds is holds


def test_the_verdict_is_that_of_all_and_names_what_is_wrong() -> None:
    wrong = Check(name="noise", measured=0.9, stated=1.0, holds=False)
    right = Check(name="clip", measured=1.0, stated=1.0, holds=True)
    found = Audited(
        claimed=2.0,
        delta=1e-5,
        findings=(finding(lower_bound=1.0), finding(lower_bound=1.5, confidence=0.9)),
        checks=(right, wrong),
        settings={},
    )
    assert not found.holds
    assert found.violations == ("noise: 0.9, where 1 is stated",)
    said = json.loads(json.dumps(found.to_json()))
    assert (said["epsilon_claimed"], said["epsilon_lower_bound"], said["confidence"]) == (2.0, 1.5, 0.9)
    assert "simulations" in said["simulated"]


def test_without_bounds_there_is_no_best() -> None:
    found = Audited(claimed=None, delta=None, findings=(finding(),), checks=(), settings={})
    assert found.holds
    assert found.to_json()["epsilon_lower_bound"] is None


def test_what_more_was_promised_for_is_not_the_best() -> None:
    """A device's life may tell more than one contribution, for which less is claimed."""
    life = finding(unit="device", claimed=6.0, lower_bound=2.7)
    found = Audited(claimed=2.0, delta=0.0, findings=(finding(lower_bound=1.0), life), checks=(), settings={})
    assert found.best is not None
    assert found.best.lower_bound == 1.0
    assert found.holds
