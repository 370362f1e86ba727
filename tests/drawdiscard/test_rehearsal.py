"""What a rehearsal reports, against the parts that it is made of."""

from typing import Any

import pytest

from incrowd import Specification
from incrowd.drawdiscard.rehearsal import Rehearsal
from tests.drawdiscard.mail import KEYS, mails

ROWS = mails(400)
TABLE: dict[str, list[object]] = {name: [row[name] for row in ROWS] for name in ROWS[0]}
LEARNS: dict[str, Any] = {"gamma": 1.0, "clip": 0.1, "epsilon": 8.0, "bound": "norm", "merge": 0.5}


def asked(formula: str = "opened ~ sender + words", **changes: object) -> Specification:
    return Specification.from_formula(formula, **{**KEYS, **LEARNS, **changes})


def rehearsal(**changes: Any) -> Rehearsal:
    return Rehearsal(**{"asked": asked(), "table": TABLE, "contributions": 400, **changes})


def test_a_table_that_is_easy_is_learnt_and_noise_costs() -> None:
    found = rehearsal().report()
    assert found["measure"] == "accuracy"
    assert found["baseline"]["accuracy"] == pytest.approx(0.5, abs=0.1)
    assert found["baseline"]["roc_auc"] == 0.5
    assert found["metrics"]["accuracy"] > 0.95
    assert found["metrics"]["loss"] < found["baseline"]["loss"]
    assert found["curve"][-1] == {"contributions": 400} | found["metrics"]
    assert found["contributions_needed"] <= 400
    assert rehearsal().report() == found
    assert (found["devices"], found["examples_of_a_device"]) == (32, 10)
    assert found["contributions_of_a_device"] == 400 / 32
    assert found["rows"] == {"learnt_from": 320, "held_out": 80}
    assert found["fit"]["usable"] == 400
    assert found["fit"]["problems"] == [
        "refused: a contribution would cost epsilon = 8 per model; this device allows 2"
    ]
    loud = rehearsal(asked=asked(epsilon=0.01)).report()
    assert loud["metrics"]["loss"] > found["metrics"]["loss"] + 0.05
    assert loud["without_noise"] == found["without_noise"]
