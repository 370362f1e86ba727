import pytest

from incrowd.privacy.account.accounting import Budget
from papers.geyer.ablations import variants
from papers.geyer.measure import ROWS
from papers.geyer.recipes import RECIPES, Case
from papers.geyer.setup import Setup


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
