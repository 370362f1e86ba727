"""Features of a URL: what they measure, that a device computes them, and that no text breaks them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd import Budget, Device, Ledger, Relation
from incrowd.drawdiscard import Policy
from papers.ddml.url_features import FEATURES, SPECIFICATION, url_features
from tests.papers.addresses import made_up


def value(name: str, url: str) -> float:
    return float(url_features([url])[0, FEATURES.index(name)])


@pytest.mark.parametrize(
    ("name", "url", "expected"),
    [
        ("in_host=a", "http://banana.org/aaaa", 0.75),
        ("after_host=a", "http://river.org/banana?a=a", 5 / 8),
        ("marks_of_path=-", "http://a-b.org/x-y-z", 0.5),
        ("host_length>=8", "http://abcde.org/", 1.0),
        ("host_length>=11", "http://abcde.org/", 0.0),
        ("depth>=3", "http://a.org/b/c/", 1.0),
        ("depth>=4", "http://a.org/b/c/", 0.0),
        ("parameters>=2", "http://a.org/?b=1&c=2", 1.0),
        ("ending=tk", "http://a.tk/", 1.0),
        ("rest_words=login", "http://a.org/Login.php", 1.0),
        ("host_words=login", "http://a.org/Login.php", 0.0),
        ("way_in", "http://verify.a.org/", 1.0),
        ("guests=weebly", "https://x.weebly.com/", 1.0),
        ("files=.php", "http://a.org/Login.php?x=1", 1.0),
        ("number_for_host>=1", "http://10.0.0.1/", 1.0),
        ("port>=1", "http://a.org:81/", 1.0),
        ("fingerprint>=16", "http://a.org/d41d8cd98f00b204e9", 1.0),
        ("fingerprint>=16", "http://a.org/d41d8cd98f00b20-e9", 0.0),
        ("longest_word>=12", "http://a.org/b?abcdefghijkl", 1.0),
        ("com_inside", "http://a.com.b.ru/", 1.0),
        ("capitals>=1", "http://a.org/B", 1.0),
        ("www", "https://www.a.org/", 1.0),
        ("www:http", "http://www.a.org/", 1.0),
        ("www:http", "https://www.a.org/", 0.0),
        ("www:script", "http://www.a.org/b.php", 1.0),
        ("vowels", "https://www.abeb.org/", 0.25),
    ],
)
def test_a_feature_measures_what_its_name_says(name: str, url: str, expected: float) -> None:
    assert value(name, url) == expected


def test_a_device_learns_them_from_its_own_table() -> None:
    its = SPECIFICATION.repeats * SPECIFICATION.epsilon  # the one column is in so many fields
    policy = Policy(unit="feature", epsilon=its, daily_epsilon=its, budget=Budget(epsilon=1e4, delta=1e-9))
    ledger = Ledger.in_memory(budget=policy.budget, relation=Relation.REPLACE_ONE)
    rows = [{"phishing": label, "url": url} for label, url in made_up(20)]
    with Device(rows, ledger=ledger, policy=policy) as device:
        assert device.check(SPECIFICATION).problems == ()
        assert device.answer(SPECIFICATION.to_json(), [0.0] * SPECIFICATION.size).shape == (387,)


@pytest.mark.slow
@given(st.lists(st.text(max_size=60), max_size=5))
def test_whatever_the_text_features_are_in_range(texts: list[str]) -> None:
    found = url_features(texts)
    assert found.shape == (len(texts), len(FEATURES))
    assert ((found >= 0) & (found <= 1)).all()
