import pytest

from harness.seeds import Entry
from incrowd import Local
from incrowd.data import Split
from papers.geyer.figures import Figures
from papers.geyer.plain import Plain, learn_plainly

PLAIN = Plain(rounds=3, clients=4, local=Local(learning_rate=0.1, batches=3))


@pytest.fixture(scope="module")
def figure1(split: Split) -> list[Entry]:
    return Figures(split=split, rows=[100], epsilon=2.5, plain=PLAIN, seeds=1).figure1()


def test_figure_1_ends_where_the_budget_does(figure1: list[Entry]) -> None:
    private, plain = figure1
    assert private["epsilon"] == 2.5 < private["epsilon_honest"]
    assert private["rounds"] == list(range(1, private["rounds"][-1] + 1))
    assert private["ended"] == {"round": private["rounds"][-1], "accuracy": private["accuracy"][-1]}
    assert len(private["accuracy"]) == len(private["rounds"])
    assert (private["paper_accuracy"], private["paper_rounds"]) == (0.78, 11)
    assert plain["ended"] is plain["epsilon"] is None
    assert plain["rounds"] == [1, 2, 3]
    assert plain["paper_accuracy"] == 0.97


@pytest.mark.slow
def test_figure_2_is_a_mean_over_seeds(split: Split) -> None:
    lines: list[str] = []
    series = Figures(split=split, plain=PLAIN, seeds=2, say=lines.append).figure2()
    first, second = (list(learn_plainly(PLAIN, split, seed=seed)) for seed in (0, 1))
    assert series["rounds"] == [1, 2, 3]
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        assert series["accuracy"][number] == pytest.approx((one.accuracy + other.accuracy) / 2)
        variance = (one.seen.between_client_variance + other.seen.between_client_variance) / 2
        assert series["between_client_variance"][number] == pytest.approx(variance)
        assert series["update_scale"][number] == pytest.approx((one.seen.update_scale + other.seen.update_scale) / 2)
    assert series["simulation_only"] is True
    assert lines == ["4 clients without privacy: 3 rounds"]
