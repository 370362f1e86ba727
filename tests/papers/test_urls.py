"""Loading and splitting URLs."""

from pathlib import Path

import numpy as np
import pytest

from papers.ddml.url_features import host_of
from papers.ddml.urls import Urls, load_urls, split_by_host
from tests.papers.addresses import made_up, write_urls


def hosts(urls: Urls) -> set[str]:
    return {host_of(text) for text in urls.texts}


def test_a_table_is_read_as_it_was_meant(tmp_path: Path) -> None:
    folder = write_urls(tmp_path, [(1, "http://a.tk/?x=1&amp;y=2#b@c.d&#10;&#10;"), (0, 'https://b.org/"quoted",path')])
    urls = load_urls(folder)
    assert urls.texts == ("http://a.tk/?x=1&y=2#b@c.d", 'https://b.org/"quoted",path')
    assert urls.labels.tolist() == [1, 0]
    assert len(urls) == 2


def test_no_host_is_on_both_sides(tmp_path: Path) -> None:
    urls = load_urls(write_urls(tmp_path, made_up(2_000)))
    train, test = split_by_host(urls, held_out=0.25, seed=3)
    assert not hosts(train) & hosts(test)
    assert len(train) + len(test) == len(urls)
    share = len(hosts(test)) / len(hosts(urls))
    assert share == pytest.approx(0.25, abs=4 * np.sqrt(0.25 * 0.75 / len(hosts(urls))))


def test_a_host_stays_on_its_side_whatever_else_there_is(tmp_path: Path) -> None:
    urls = load_urls(write_urls(tmp_path, made_up(400)))
    _, test = split_by_host(urls, held_out=0.3, seed=1)
    half = urls.where(np.arange(len(urls)) % 2 == 0)
    _, tested = split_by_host(half, held_out=0.3, seed=1)
    assert set(tested.texts) == set(test.texts) & set(half.texts)
    _, other = split_by_host(urls, held_out=0.3, seed=2)
    assert set(other.texts) != set(test.texts)
