"""Noise comes against a receipt, once, and there is one door: whoever wants noise for nothing, or twice, gets none."""

import ast
import contextlib
import copy
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

import incrowd
from incrowd._random import SeededRandomness, SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError, IncrowdError
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.grid import GaussianNoise
from tests.privacy.receipts import paid, roomy

pytestmark = pytest.mark.watched

NOISE = GaussianNoise(noise_multiplier=2.0, clip_norm=1.0)
PACKAGE = Path(incrowd.__file__).parent
TOTAL = np.zeros(3)

# Who may do what is named here, and nobody else does it.
DOORS = {
    "SEAL": {"privacy/ledger/tally.py", "privacy/ledger/ledger.py"},
    "sample_noise": {f"privacy/mechanism/{name}.py" for name in ("grid", "correlated", "shared")},
    "Receipt(": {"privacy/ledger/ledger.py"},
}


def doors(text: str) -> set[str]:
    """What of `DOORS` a module opens."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.id == "SEAL":
            found.add("SEAL")
        if "sample_noise" in (getattr(node, "attr", None), getattr(node, "id", None)):
            found.add("sample_noise")
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Receipt", "receipt.Receipt"):
            found.add("Receipt(")
    return found


@pytest.mark.slow
def test_only_the_ledger_makes_receipts_and_only_noises_draw_on_the_grid() -> None:
    opened: dict[str, set[str]] = {door: set() for door in DOORS}
    for path in PACKAGE.rglob("*.py"):
        for door in doors(path.read_text(encoding="utf-8")):
            opened[door].add(path.relative_to(PACKAGE).as_posix())
    assert opened == DOORS


def test_control_a_second_door_is_seen() -> None:
    for call in ("grid.sample_noise(1)", "sample_noise(1)"):
        assert doors(f"value = {call}") == {"sample_noise"}
    assert doors("from x import SEAL, Receipt\nmine = Receipt(1, seal=SEAL)") == {"SEAL", "Receipt("}


def test_a_receipt_cannot_be_made_up() -> None:
    entry = paid(NOISE).entry
    with pytest.raises(ConfigError, match=r"only Ledger\.charge makes receipts"):
        Receipt(entry, randomness=SystemRandomness(), pays_for=[(NOISE, 9)], seal=object())


def test_noise_is_drawn_once_and_no_other_noise() -> None:
    receipt = paid(NOISE)
    less = GaussianNoise(noise_multiplier=0.01, clip_norm=1.0)
    with pytest.raises(ConfigError, match="not what this receipt was paid for"):
        less.add(TOTAL, receipt=receipt, at=("noise",), contributions_bound=1)
    NOISE.add(TOTAL, receipt=receipt, at=("noise",), contributions_bound=1)
    with pytest.raises(ConfigError, match="it was drawn already"):
        NOISE.add(TOTAL, receipt=receipt, at=("noise",), contributions_bound=1)
    with pytest.raises(BudgetExceeded, match="all noise that was paid for"):
        NOISE.add(TOTAL, receipt=receipt, at=("noise", 1), contributions_bound=1)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda receipt: pickle.loads(pickle.dumps(receipt))])  # noqa: S301 - it never gets so far
def test_a_receipt_is_not_copied(copied: object) -> None:
    with pytest.raises(ConfigError, match="a receipt is not copied"):
        copied(paid(NOISE))  # type: ignore[operator]  # they are functions


def test_threads_share_what_is_left() -> None:
    receipt, drawn, refused = paid(NOISE, times=5), [], []

    def draw(number: int) -> None:
        try:
            drawn.append(receipt.noise_stream(NOISE, "noise", number))
        except IncrowdError as error:
            refused.append(error)

    threads = [threading.Thread(target=draw, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(drawn), len(refused)) == (5, 15)


def test_a_thread_that_comes_in_the_middle_of_a_draw_does_not_get_the_same_noise() -> None:
    drawn: list[object] = []
    others: list[threading.Thread] = []

    class Slow:
        """A noise; while it is compared with what was asked for, another thread asks for the same draw."""

        def __eq__(self, asked: object) -> bool:
            if not others:
                others.append(threading.Thread(target=draw))
                others[0].start()
                others[0].join(timeout=1)  # it has to wait for this draw to end
            return True

        __hash__ = None  # type: ignore[assignment]  # nobody looks it up

    receipt = paid(Slow(), times=2)

    def draw() -> None:
        with contextlib.suppress(ConfigError):
            drawn.append(receipt.noise_stream(Slow(), "noise"))

    draw()
    others[0].join()
    assert len(drawn) == 1


def test_two_equal_noises_are_two_draws() -> None:
    receipt = roomy().charge(GaussianDpEvent(0.5), pays_for=[(NOISE, 1), (GaussianNoise(**vars(NOISE)), 1)])
    receipt.noise_stream(NOISE, "one")
    receipt.noise_stream(NOISE, "two")
    with pytest.raises(BudgetExceeded):
        receipt.noise_stream(NOISE, "three")


def test_what_is_charged_in_earnest_is_not_drawn_from_a_seed() -> None:
    ledger = roomy()
    earnest, seeded = (
        ledger.charge(GaussianDpEvent(9.0)),
        ledger.charge(GaussianDpEvent(9.0), randomness=SeededRandomness(4)),
    )
    assert (earnest.simulated, seeded.simulated) == (False, True)
    noted = [entry.content()["randomness"] for entry in ledger.entries() if entry.kind == "charge"]
    assert noted == ["system", SeededRandomness(4).source]
    assert ledger.charges() == (2, 1)


def test_a_source_of_one_s_own_is_not_noted_as_the_system_s() -> None:
    class Mine(SeededRandomness):
        source = "system"

    with pytest.raises(ConfigError, match="only SystemRandomness may be called so"):
        roomy().charge(GaussianDpEvent(9.0), randomness=Mine(1))


class TestKeys:
    """A key is charged once; the same seeded noise again is no second release, anything else is."""

    def a_ledger(self) -> Ledger:
        return Ledger.in_memory(budget=Budget(epsilon=3.0, delta=1e-5), relation=Relation.ADD_OR_REMOVE_ONE)

    def test_a_simulation_may_repeat_what_it_paid_for(self) -> None:
        ledger, source, noise = self.a_ledger(), SeededRandomness(1), GaussianNoise(noise_multiplier=9.0, clip_norm=1.0)
        first = ledger.charge(noise.event(), key="a", randomness=source, pays_for=[(noise, 1)])
        again = ledger.charge(noise.event(), key="a", randomness=source, pays_for=[(noise, 1)])
        assert first.entry == again.entry
        assert ledger.charges() == (1, 1)
        assert ledger.paid("a")
        assert not ledger.paid("b")
        assert np.array_equal(again.noise_stream(noise, "noise").bits(3), first.noise_stream(noise, "noise").bits(3))

    @pytest.mark.parametrize(
        ("source", "event"),
        [
            (SeededRandomness(2), GaussianDpEvent(9.0)),
            (SystemRandomness(), GaussianDpEvent(9.0)),
            (SeededRandomness(1), GaussianDpEvent(8.0)),
        ],
        ids=["another seed", "in earnest", "another event"],
    )
    def test_anything_else_would_cost_again(self, source: SeededRandomness, event: GaussianDpEvent) -> None:
        ledger = self.a_ledger()
        ledger.charge(GaussianDpEvent(9.0), key="a", randomness=SeededRandomness(1))
        with pytest.raises(ConfigError, match="it is paid for already"):
            ledger.charge(event, key="a", randomness=source)
        assert ledger.charges() == (1, 1)

    def test_in_earnest_nothing_is_repeated(self) -> None:
        ledger = self.a_ledger()
        ledger.charge(GaussianDpEvent(9.0), key="a")
        with pytest.raises(ConfigError, match="fresh noise would cost again"):
            ledger.charge(GaussianDpEvent(9.0), key="a")

    def test_a_key_that_another_process_charges_meanwhile_is_not_charged_twice(self, tmp_path: Path) -> None:
        path, budget = tmp_path / "ledger", Budget(epsilon=3.0, delta=1e-5)
        with (
            Ledger.open(path, budget=budget, relation=Relation.ADD_OR_REMOVE_ONE, data_identity="x") as ours,
            Ledger.open(path) as theirs,
        ):
            theirs.reserve([(GaussianDpEvent(20.0), 1)], label="run")
            check = ours._check_budget

            def slow(runs: object) -> None:
                check(runs)  # type: ignore[arg-type]  # passed on
                theirs.charge(GaussianDpEvent(20.0), key="a", reservation="run")

            ours._check_budget = slow  # type: ignore[method-assign]  # in the moment between pricing and writing
            with pytest.raises(ConfigError, match="it is paid for already"):
                ours.charge(GaussianDpEvent(9.0), key="a")
            assert ours.charges() == (1, 0)
            assert ours.verify().charged == 1
