import pytest

from incrowd.data import Split
from incrowd.privacy.account.accounting import Budget
from papers.geyer.ablations import variants
from papers.geyer.measure import ROWS
from papers.geyer.recipes import RECIPES, Case
from papers.geyer.report import report
from papers.geyer.setup import Setup
from papers.geyer.table1 import Table


def case(clients: int, epsilon: float = 8.0) -> Case:
    return Case(clients=clients, budget=Budget(epsilon=epsilon, delta=ROWS[clients].delta), shape=(28, 28))


@pytest.mark.slow
@pytest.mark.parametrize("clients", ROWS)
@pytest.mark.parametrize("name", RECIPES)
def test_every_variant_differs_from_the_recipe_in_one_thing(name: str, clients: int) -> None:
    setup = RECIPES[name].setup(case(clients))
    first, *others = variants(setup, case(clients))
    assert first.setups == (setup,)
    names = [variant.name for variant in others]
    assert len(set(names)) == len(names) >= 6
    for variant in others:
        for other in variant.setups:
            assert repr(other) != repr(setup)
            if not isinstance(setup, Setup):
                continue
            assert isinstance(other, Setup)
            assert other.features is None or setup.features is not None  # tiers are never mixed
            if name == "general":
                assert other.features is not None
                assert "Moment" not in other.features.name


@pytest.mark.slow
def test_ablations_compare_with_the_recipe(split: Split) -> None:
    table = Table(split=split, rows=[100], recipes=["general"], epsilons=[0.7], seeds=1)
    found, shown = report(table, smallest=False, ablate=True, plot=None)
    entries = found["ablations"]
    assert entries == shown
    assert entries[0]["variant"] == "the recipe"
    assert entries[0]["difference"] == 0
    for entry in entries:
        assert entry["difference"] == pytest.approx(entry["accuracy"] - entries[0]["accuracy"])
        assert 0 <= entry["accuracy"] <= 1
