import numpy as np
import pytest

from incrowd import Specification
from incrowd.drawdiscard import Predictor
from tests.drawdiscard.mail import FIELDS, KEYS, asked

WEIGHTS = np.array([0.5, 2.0, -1.0, 3.0])


def test_predictions_are_those_of_the_model_by_hand() -> None:
    model = Predictor(asked(), WEIGHTS)
    assert model.specification.columns == ("sender=friend", "sender=shop", "words")
    found = model.predict([{"sender": "friend", "words": 250}, {"sender": "shop", "words": 0}])
    assert found == pytest.approx(1 / (1 + np.exp(-np.array([0.5 + 2.0 + 1.5, 0.5 - 1.0]))))


def test_a_category_has_a_chance_for_each_level() -> None:
    stated = Specification.from_formula("sender ~ words", **KEYS)
    model = Predictor(stated, np.array([0.0, 1.0, 2.0, 0.0]))
    found = model.predict([{"words": 0}, {"words": 500}])
    assert model.levels == ("friend", "shop")
    assert found.shape == (2, 2)
    assert found.sum(axis=1) == pytest.approx(1)
    assert found[1] == pytest.approx(np.exp([2.0, 1.0]) / np.exp([2.0, 1.0]).sum())


@pytest.mark.parametrize(("response", "link"), [("opened", "logistic"), ("sender", "multinomial"), ("words", "linear")])
def test_the_link_follows_the_response_unless_it_is_given(response: str, link: str) -> None:
    other = next(name for name in FIELDS if name != response)
    assert Specification.from_formula(f"{response} ~ {other}", **KEYS).link == link
    assert Specification.from_formula("words ~ sender", **KEYS, link="poisson").link == "poisson"
