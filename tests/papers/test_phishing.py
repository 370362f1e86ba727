"""The phishing experiment on made-up URLs, which are easy to tell apart."""

import numpy as np
import pytest

from papers.ddml.phishing import AS_PAPER, BEST, PAPER, PAPER_SHARE, Phishing
from papers.ddml.url_features import host_of
from papers.ddml.urls import Urls
from tests.papers.addresses import made_up


@pytest.fixture(scope="module")
def urls() -> Urls:
    rows = made_up(1_200)
    return Urls(texts=tuple(text for _, text in rows), labels=np.array([label for label, _ in rows]))


@pytest.fixture(scope="module")
def study(urls: Urls) -> Phishing:
    return Phishing.of(urls, passes=20, seeds=2)


@pytest.mark.slow
def test_the_papers_setting_is_the_papers(study: Phishing) -> None:
    assert (AS_PAPER.instances, AS_PAPER.learning_rate, AS_PAPER.clip) == (20, 0.001, 1.0)
    assert AS_PAPER.epsilon == BEST.epsilon == pytest.approx(np.log(32))
    assert BEST.instances == AS_PAPER.instances
    assert study.report(best=False)["setting"] == "paper"
    assert 2 * PAPER.precision * PAPER.recall / (PAPER.precision + PAPER.recall) == pytest.approx(PAPER.f1, abs=1e-4)
    assert pytest.approx(0.0151, abs=1e-4) == PAPER_SHARE


def test_tuning_never_sees_the_test_urls(urls: Urls, study: Phishing) -> None:
    tuning = Phishing.of(urls, tuning=True)
    kept = {host_of(text) for side in (tuning.train, tuning.test) for text in side.texts}
    assert not kept & {host_of(text) for text in study.test.texts}
    assert len(tuning.train) + len(tuning.test) == len(study.train)
