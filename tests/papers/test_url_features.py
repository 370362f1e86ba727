"""Features of a URL: what parts it has, and that no text breaks them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.ddml.url_features import FEATURES, Parts, url_features
from tests.papers.addresses import made_up


def value(name: str, url: str) -> float:
    return FEATURES[name](Parts.of(url))


def test_a_url_falls_into_its_parts() -> None:
    parts = Parts.of(" HTTPS://User:pw@Mail.Shop.Example.co.uk:8443/A/b.php?x=1&y=2#Top@mail ")
    assert (parts.scheme, parts.host, parts.port) == ("https", "mail.shop.example.co.uk", "8443")
    assert (parts.path, parts.query, parts.fragment) == ("/a/b.php", "x=1&y=2", "top@mail")
    assert (parts.ending, parts.name, parts.inner) == ("uk", "example", "mail.shop")
    assert parts.capitals
    assert not parts.is_address


@pytest.mark.parametrize(
    ("url", "host", "name", "inner"),
    [
        ("https://www.river.org/", "www.river.org", "river", ""),
        ("http://river.org?next=1", "river.org", "river", ""),
        ("river.org/path", "river.org", "river", ""),
        ("http://co.uk/", "co.uk", "co", ""),
        ("http://localhost", "localhost", "localhost", ""),
        ("", "", "", ""),
        ("://", "", "", ""),
    ],
)
def test_parts_of_short_and_odd_hosts(url: str, host: str, name: str, inner: str) -> None:
    parts = Parts.of(url)
    assert (parts.host, parts.name, parts.inner) == (host, name, inner)


@pytest.mark.parametrize(
    ("name", "url", "expected"),
    [
        ("a in the host", "http://banana.org/aaaa", 0.75),
        ("a after the host", "http://river.org/banana?a=a", 5 / 8),
        ("- in the path", "http://a-b.org/x-y-z", 0.5),
        ("host length >= 8", "http://abcde.org/", 1.0),
        ("host length >= 11", "http://abcde.org/", 0.0),
        ("depth >= 2", "http://a.org/b/c/", 1.0),
        ("depth >= 3", "http://a.org/b/c/", 0.0),
        ("parameters >= 2", "http://a.org/?b=1&c=2", 1.0),
        ("ends in .tk", "http://a.tk/", 1.0),
        ("an unusual ending", "http://a.example/", 1.0),
        ("login after the host", "http://a.org/Login.php", 1.0),
        ("login in the host", "http://a.org/Login.php", 0.0),
        ("a way in, anywhere", "http://verify.a.org/", 1.0),
        ("a guest of weebly", "https://x.weebly.com/", 1.0),
        ("a file: .php", "http://a.org/Login.php?x=1", 1.0),
        ("a number for a host", "http://10.0.0.1/", 1.0),
        ("a port", "http://a.org:81/", 1.0),
        ("a fingerprint", "http://a.org/d41d8cd98f00b204e9", 1.0),
        ("www and a name", "https://www.a.org/", 1.0),
        ("no www, a script", "https://a.org/b.php", 1.0),
        ("vowels of the name", "https://www.abeb.org/", 0.5),
        ("letters beside digits in the host", "http://a1b.org/", 0.5),
    ],
)
def test_a_feature_measures_what_its_name_says(name: str, url: str, expected: float) -> None:
    assert value(name, url) == expected


def test_a_model_of_them_has_the_papers_387_weights() -> None:
    assert len(FEATURES) + 1 == 387


@given(st.lists(st.text(max_size=60), max_size=5))
def test_whatever_the_text_features_are_in_range(texts: list[str]) -> None:
    found = url_features(texts)
    assert found.shape == (len(texts), len(FEATURES))
    assert ((found >= 0) & (found <= 1)).all()


def test_only_the_one_text_counts_and_it_may_be_long() -> None:
    urls = [text for _, text in made_up(20)]
    together = url_features(urls)
    assert (together == np.concatenate([url_features([url]) for url in urls])).all()
    long = f"http://a.org/{'x' * 5_000}"
    assert (url_features([long]) == url_features([long + "/login.php?verify"])).all()


def test_every_feature_is_its_own() -> None:
    found = url_features([text for _, text in made_up(300)])
    seen = found.std(axis=0) > 0
    assert seen.sum() > 100  # the made-up URLs use most of the alphabet and some of the words
