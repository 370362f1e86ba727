"""What a notebook shows of ledgers and plans can be handed on, and is text whatever a name holds."""

from pathlib import Path

from dp_accounting import GaussianDpEvent

from incrowd._random import SeededRandomness
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import DataIdentity

BUDGET, RELATION = Budget(epsilon=2.0, delta=1e-5), Relation.ADD_OR_REMOVE_ONE
SECRET = "0123456789abcdef:feed"  # noqa: S105 - a made-up fingerprint


def test_a_ledger_shows_what_is_spent_and_nothing_that_only_its_keeper_may_see(tmp_path: Path) -> None:
    its = DataIdentity(name="/home/anna/<b>visits</b>.csv", fingerprint=SECRET, unit="client", division="by patient")
    with Ledger.open(tmp_path / "mine", budget=BUDGET, relation=RELATION, data_identity=its) as ledger:
        ledger.charge(GaussianDpEvent(5.0), note={"run": "hush"}, key="key of mine")
        ledger.reserve([(GaussianDpEvent(9.0), 2)], label="label of mine")
        shown = ledger._repr_html_()
        assert f"<tr><th>epsilon spent</th><td>{ledger.spent().epsilon:.6g}, of 2</td></tr>" in shown
        assert f"<tr><th>spent or reserved</th><td>{ledger.promised().epsilon:.6g}</td></tr>" in shown
        for private in (SECRET, "anna", "<b>", str(tmp_path), "hush", "of mine", ledger.id, ledger.head):
            assert private not in shown
    closed = "<table><tr><th>ledger</th><td>cannot be read now: LedgerUnwritable</td></tr></table>"
    assert ledger._repr_html_() == closed


def test_a_simulation_and_public_data_are_said() -> None:
    identity = DataIdentity(name="<i>digits", public=True)
    with Ledger.in_memory(budget=BUDGET, relation=RELATION, data_identity=identity) as ledger:
        ledger.charge(GaussianDpEvent(5.0), randomness=SeededRandomness(seed=1))
        shown = ledger._repr_html_()
    for said in (
        "<td>&lt;i&gt;digits</td>",
        "1, 1 of them of seeded noise: a SIMULATION",
        "they hide nobody",
        "forgotten",
    ):
        assert said in shown
