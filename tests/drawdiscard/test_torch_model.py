import numpy as np
import pytest
from torch import nn

from incrowd._random import SeededRandomness
from incrowd.drawdiscard.glm import LINKS, MULTINOMIAL, Glm, Link, one_hot
from incrowd.drawdiscard.torch_model import TorchModel, perceptron
from incrowd.errors import ConfigError
from incrowd.learning.models import Model

STREAM = SeededRandomness(seed=4).stream("problem")
FEATURES = (STREAM.bits(8 * 3) % 100).reshape(8, 3) / 100


def responses_for(link: Link) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    labels = np.arange(8) % (4 if link is MULTINOMIAL else 2)
    return np.asarray(one_hot(labels, 4) if link is MULTINOMIAL else labels[:, None], np.float64)


@pytest.mark.parametrize("link", LINKS.values(), ids=lambda link: link.name)
def test_without_hidden_layers_it_is_a_generalised_linear_model(link: Link) -> None:
    outputs = 4 if link is MULTINOMIAL else 1
    torch_model = perceptron((3, outputs), link=link.name)
    glm = Glm(features=3, link=link, outputs=outputs)
    weights = SeededRandomness(seed=5).stream("weights").normals(glm.size)
    rows = weights.reshape(4, outputs)  # the intercept first; torch has it last, and the outputs as rows
    theirs = np.concatenate([rows[1:].T.ravel(), rows[0]])
    responses = responses_for(link)
    ours = glm.gradient(weights, FEATURES, responses).reshape(4, outputs)
    expected = np.concatenate([ours[1:].T.ravel(), ours[0]])
    np.testing.assert_allclose(torch_model.gradient(theirs, FEATURES, responses), expected, atol=1e-5)
    np.testing.assert_allclose(torch_model.predict(theirs, FEATURES), glm.predict(weights, FEATURES), rtol=1e-4)
    assert torch_model.loss(theirs, FEATURES, responses) == pytest.approx(
        glm.loss(weights, FEATURES, responses), rel=1e-4
    )


def test_frozen_parts_are_in_evaluation_mode_and_dropout_is_refused() -> None:
    body = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).requires_grad_(requires_grad=False)
    model = TorchModel(module=Model(nn.Sequential(body, nn.Linear(3, 4))), features=3, outputs=4, link=MULTINOMIAL)
    weights = np.linspace(-1, 1, model.size)
    together, alone = model.predict(weights, FEATURES), model.predict(weights, FEATURES[:1])
    np.testing.assert_allclose(together[:1], alone, rtol=1e-5)
    assert body.training
    dropping = Model(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)))
    with pytest.raises(ConfigError, match=r"Dropout at 1.*which no device has"):
        TorchModel(module=dropping, features=3, outputs=4, link=MULTINOMIAL)
