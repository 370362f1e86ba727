"""The phishing experiment on made-up URLs, which are easy to tell apart."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from incrowd.errors import ConfigError, DataError
from papers.ddml.phishing import AS_PAPER, BEST, PAPER, PAPER_SHARE, VARIANTS, Phishing, Variant, plot_phishing
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
def test_the_report_has_what_was_asked_for(study: Phishing, tmp_path: Path) -> None:
    found = study.report(best=True)
    assert found["setting"] == "best"
    assert {"roc_auc", "pr_auc", "accuracy", "precision", "recall", "f1"} <= found.keys()
    assert [row["label"] for row in found["table"]][:2] == ["paper", "best"]
    assert len({row["updates"] for row in found["table"]}) == 1
    assert found["roc_auc"] > 0.95
    assert found["not_private"]["roc_auc"] > 0.95
    assert "387 released numbers" in found["promise"]
    assert found["weights"] == 387
    assert len(found["findings"]) == 3
    files = plot_phishing(tmp_path / "figures", found)
    assert all(Path(file).stat().st_size > 1_000 for file in files)


@pytest.mark.slow
def test_the_papers_setting_is_the_papers(study: Phishing) -> None:
    assert (AS_PAPER.instances, AS_PAPER.learning_rate, AS_PAPER.clip) == (20, 0.001, 1.0)
    assert AS_PAPER.epsilon == BEST.epsilon == pytest.approx(np.log(32))
    assert BEST.instances == AS_PAPER.instances
    assert study.report(best=False)["setting"] == "paper"
    assert 2 * PAPER.precision * PAPER.recall / (PAPER.precision + PAPER.recall) == pytest.approx(PAPER.f1, abs=1e-4)
    assert pytest.approx(0.0151, abs=1e-4) == PAPER_SHARE


def test_much_noise_costs_much(study: Phishing) -> None:
    best = study.measure(Variant(case=BEST))
    noisy = study.measure(Variant(case=replace(BEST, epsilon=0.01)))
    assert noisy["roc_auc"] < best["roc_auc"] - 0.05


def test_the_same_seed_gives_the_same_numbers(study: Phishing) -> None:
    first, second = (study.measure(Variant(case=BEST)) for _ in range(2))
    assert first["roc_auc_over_time"] == second["roc_auc_over_time"]
    assert first["pr_auc"] == second["pr_auc"]


def test_a_delta_makes_the_whole_model_private() -> None:
    whole = VARIANTS[-1].mechanism(387)
    assert (whole.noise, whole.privacy, whole.bound) == ("gaussian", "model", "norm")
    assert whole.epsilon == AS_PAPER.epsilon
    assert Variant(case=AS_PAPER).mechanism(387).privacy == "feature"


def test_tuning_never_sees_the_test_urls(urls: Urls, study: Phishing) -> None:
    tuning = Phishing.of(urls, tuning=True)
    kept = {host_of(text) for side in (tuning.train, tuning.test) for text in side.texts}
    assert not kept & {host_of(text) for text in study.test.texts}
    assert len(tuning.train) + len(tuning.test) == len(study.train)


def test_one_url_a_device_makes_as_many_updates(study: Phishing) -> None:
    found = study.measure(Variant(case=BEST, per_device=1))
    assert found["updates"] == study.updates == 20 * (len(study.train) // 10)
    assert found["per_device"] == 1


def test_what_cannot_be_measured_is_refused(urls: Urls) -> None:
    few = urls.where(np.arange(len(urls)) < 5)
    with pytest.raises(DataError):
        Phishing(train=few, test=urls)
    with pytest.raises(ConfigError):
        Phishing(train=urls, test=urls, passes=0)
