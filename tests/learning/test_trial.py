"""What is tried out of a model by what is stated alone, and of tokens by the smallest and the largest."""

import pytest
import torch
from torch import Tensor, nn

from incrowd.errors import ConfigError, DataError
from incrowd.learning import CROSS_ENTROPY, LOGISTIC, Model
from incrowd.learning.trial import tried_for_classes, tried_with_tokens

pytestmark = pytest.mark.watched

FEATURES = torch.zeros(4, 6)
LABELS = torch.zeros(4, dtype=torch.int64)


def linear(outputs: int) -> Model:
    return Model(nn.Linear(6, outputs))


def test_a_model_has_an_output_for_each_stated_class() -> None:
    tried_for_classes(linear(3), FEATURES, LABELS, 3, CROSS_ENTROPY)
    for outputs in (1, 2, 4):
        with pytest.raises(ConfigError, match=f"module = 'it has {outputs} outputs': there are 3 classes: give one"):
            tried_for_classes(linear(outputs), FEATURES, LABELS, 3, CROSS_ENTROPY)


def test_other_losses_are_asked_whether_every_class_fits() -> None:
    tried_for_classes(linear(1), FEATURES, LABELS, 2, LOGISTIC)
    with pytest.raises(DataError, match="'logistic' does not fit"):
        tried_for_classes(linear(1), FEATURES, LABELS, 3, LOGISTIC)


def test_every_place_of_a_sequence_has_an_output_for_each_class() -> None:
    model, tokens = Model(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))), torch.zeros(2, 7, dtype=torch.int64)
    tried_for_classes(model, tokens, tokens, 3, CROSS_ENTROPY)
    with pytest.raises(ConfigError, match="it has 3 outputs"):
        tried_for_classes(model, tokens, tokens, 5, CROSS_ENTROPY)


class Pair(nn.Module):
    """One place for each pair of tokens that there is: the largest of each together have none."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.embedding(tokens.prod(1))
        return outputs


def test_tokens_are_looked_at_by_the_smallest_and_the_largest_of_each_place() -> None:
    model = Model(nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 2)))
    tried_with_tokens(model, torch.tensor([[0, 9], [9, 3]]), what="examples")
    for token in (10, -1):
        with pytest.raises(DataError, match="the whole numbers that some examples have"):
            tried_with_tokens(model, torch.tensor([[0, 9], [token, 3]]), what="examples")
    tried_with_tokens(model, torch.zeros(0, 2, dtype=torch.int64), what="examples")
    tried_with_tokens(linear(2), FEATURES, what="examples")


def test_what_nobody_has_is_no_reason_to_refuse() -> None:
    model = Model(Pair())
    many = torch.tensor([[1, 9], [9, 1]]).repeat(1200, 1)
    tried_with_tokens(model, many, what="records")  # 9 and 9 would be too large
    many[-1] = torch.tensor([2, 9])
    with pytest.raises(DataError, match="some records have"):
        tried_with_tokens(model, many, what="records")


def test_the_refusal_does_not_say_whose_token_it_is() -> None:
    class Table(Pair):
        def forward(self, tokens: Tensor) -> Tensor:
            places = {token: token for token in range(10)}
            outputs: Tensor = self.embedding(torch.tensor([places[int(row[0])] for row in tokens]))
            return outputs

    with pytest.raises(DataError) as refused:
        tried_with_tokens(Model(Table()), torch.tensor([[3], [4242]]), what="examples")
    assert "4242" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_beside_tokens_other_inputs_are_zeros() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.layer = nn.Embedding(4, 3), nn.Linear(3, 2)

        def forward(self, tokens: Tensor, numbers: Tensor) -> Tensor:
            outputs: Tensor = self.layer(self.embedding(tokens) + numbers)
            return outputs

    numbers = torch.full((2, 3), torch.nan)
    tried_with_tokens(Model(Both()), (torch.tensor([0, 3]), numbers), what="examples")
    with pytest.raises(DataError, match="whole numbers"):
        tried_with_tokens(Model(Both()), (torch.tensor([0, 4]), numbers), what="examples")
