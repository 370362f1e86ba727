"""The ablation of features of pictures, on made-up examples of a few classes."""

from pathlib import Path

import feature_ablation
import numpy as np
import pytest

from incrowd.data import Examples, Split
from incrowd.learning.features import SecondOrderEnergies


@pytest.mark.slow
def test_a_row_says_what_a_variant_reaches(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    labels = np.arange(300) % 3
    pictures = np.random.default_rng(0).uniform(0, 0.2, (300, 28, 28)).astype(np.float32)
    for label, picture in zip(labels, pictures, strict=True):
        picture[4 + 7 * label : 8 + 7 * label] += 0.6
    train = Examples(features=pictures, labels=labels, classes=3)
    split = Split(name="made up", train=train, test=train)
    monkeypatch.setattr(feature_ablation, "load_set", lambda *_: split)
    monkeypatch.setattr(feature_ablation, "MADE_UP", 100)
    monkeypatch.setattr(feature_ablation, "TRAIN", 200)
    monkeypatch.setattr(feature_ablation, "HELD_OUT", 100)
    monkeypatch.setattr(feature_ablation, "DIMENSIONS", 16)
    made = feature_ablation.Variant(base=lambda: SecondOrderEnergies(stride=4))
    monkeypatch.setattr(feature_ablation, "GREY", {"second order": made})
    feature_ablation.main(["--data", str(Path()), "--sets", "fashion", "--seeds", "1"])
    (row,) = capsys.readouterr().out.splitlines()
    assert row.startswith("| fashion | 100 | second order | ")
    assert float(row.split("|")[4].split("±")[0]) > 0.9
