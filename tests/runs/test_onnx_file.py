"""A released model as ONNX answers as the module does, for any number of examples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from incrowd.learning import mlp, small_cnn
from incrowd.runs.export import export
from incrowd.runs.predict import INPUT, OUTPUT, Result, onnx_of
from incrowd.runs.run import Run
from incrowd.runs.settings import load
from tests.runs.test_table_runs import SIX, write

pytestmark = pytest.mark.usefixtures("one_thread")
onnx: Any = pytest.importorskip("onnx", reason="ONNX is an extra")
pytest.importorskip("onnxscript", reason="ONNX is an extra")


def answers(content: bytes, features: Any) -> Any:
    from onnx.reference import ReferenceEvaluator

    found: Any = ReferenceEvaluator(onnx.load_from_string(content)).run([OUTPUT], {INPUT: features})
    return found[0]


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru, self.output = nn.Embedding(9, 4), nn.GRU(4, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.output(self.gru(self.embedding(tokens))[0][:, -1])
        return outputs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "shape", "dtype"),
    [
        (mlp((4, 5, 2)).module, (4,), np.float32),
        (nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Tanh(), nn.Linear(6, 1)), (4,), np.float32),
        (small_cnn(side=16).module, (16, 16), np.float32),
        (Gru(), (5,), np.int64),
    ],
    ids=("perceptron", "normalised", "images", "tokens"),
)
def test_it_answers_as_the_module_does(module: nn.Module, shape: tuple[int, ...], dtype: Any) -> None:
    content = onnx_of(module, shape, np.dtype(dtype))
    assert b".py" not in content
    for count in (1, 3, 7):
        features = np.random.default_rng(count).integers(0, 9, size=(count, *shape)).astype(dtype)
        with torch.no_grad():
            expected = module(torch.from_numpy(features)).numpy()
        assert np.allclose(answers(content, features), expected, atol=1e-4), count


@pytest.mark.slow
def test_of_a_run_on_a_table_it_is_among_what_is_handed_on(tmp_path: Path) -> None:
    run = Run.create(load(write(tmp_path, SIX)), tmp_path / "run")
    run.train()
    assert "model.onnx" in export(tmp_path / "run", tmp_path / "out", onnx=True)
    assert "model.onnx" not in export(tmp_path / "run", tmp_path / "more")
    features = np.array([[0.5, 1, 0], [-1, 0, 1]], np.float32)
    found = answers((tmp_path / "out/model.onnx").read_bytes(), features)
    assert np.allclose(found, Result.of(run).outputs(features), atol=1e-5)
    assert str(tmp_path).encode() not in (tmp_path / "out/model.onnx").read_bytes()
