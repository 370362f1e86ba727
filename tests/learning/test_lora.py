import copy
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from incrowd.errors import ConfigError
from incrowd.learning import Model, lora, merged
from tests.learning.own_models import LENGTH, WIDTH, WORDS, Attention

TOKENS = torch.randint(0, WORDS, (5, LENGTH), generator=torch.Generator().manual_seed(1))


def moved(module: nn.Module) -> nn.Module:
    """The module after its adapters have learnt something."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    return module


def test_at_the_start_the_function_is_unchanged_and_only_adapters_are_trained() -> None:
    module = Attention()
    before = copy.deepcopy(module.state_dict())
    adapted = lora(module, rank=3)
    assert torch.equal(adapted(TOKENS), module.eval()(TOKENS))
    model = Model(adapted)
    assert model.layout.names == ("query.down.weight", "query.up.weight", "value.down.weight", "value.up.weight")
    assert model.size == 2 * 2 * 3 * WIDTH
    moved(adapted)
    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())
    assert all(parameter.requires_grad for parameter in module.parameters())


def test_the_adapter_is_a_product_of_low_rank() -> None:
    adapted = moved(lora(nn.Linear(6, 5), rank=2, alpha=3.0, on=("",)))
    base, down, up = (adapted.get_parameter(f"{name}.weight") for name in ("base", "down", "up"))
    x = torch.randn(7, 6)
    expected = x @ base.t() + adapted.get_parameter("base.bias") + 1.5 * x @ (up @ down).t()
    torch.testing.assert_close(adapted(x), expected)
    assert torch.linalg.matrix_rank(merged(adapted).get_parameter("weight") - base) == 2


def test_folded_adapters_compute_the_same_with_the_names_of_the_module() -> None:
    module = Attention()
    adapted = moved(lora(module, rank=2))
    plain = merged(adapted)
    assert plain.state_dict().keys() == module.state_dict().keys()
    torch.testing.assert_close(plain(TOKENS), adapted(TOKENS))
    assert not torch.allclose(plain(TOKENS), module.eval()(TOKENS), atol=1e-3)
    assert "query.down.weight" in adapted.state_dict()  # what was given is as before
    with pytest.raises(ConfigError, match="no adapters: give what lora made"):
        merged(plain)


@pytest.mark.parametrize(
    ("on", "names"),
    [
        (("query",), ["0.query", "1.query"]),
        (("0.query", "1.value"), ["0.query", "1.value"]),
        (("1.*",), ["1.query", "1.key", "1.value", "1.head"]),
        ("key", ["0.key", "1.key"]),
    ],
)
def test_layers_are_named_by_name_end_or_pattern(on: Sequence[str], names: list[str]) -> None:
    adapted = lora(nn.ModuleList([Attention(), Attention()]), rank=2, on=on)
    found = {name.rpartition(".down.")[0] for name, one in adapted.named_parameters() if one.requires_grad}
    assert found - {""} == set(names)


def test_torchs_attention_takes_an_adapted_output_layer() -> None:
    encoder = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    adapted = lora(encoder, rank=2, on=("out_proj", "linear1"))
    x = torch.randn(3, LENGTH, WIDTH)
    torch.testing.assert_close(adapted(x), encoder.eval()(x))
    gradients = torch.autograd.grad(adapted(x).square().sum(), [adapted.get_parameter("self_attn.out_proj.up.weight")])
    assert gradients[0].abs().sum() > 0
    moved(adapted)
    with torch.no_grad():  # where torch has a way of its own through the layer
        torch.testing.assert_close(adapted(x), merged(adapted)(x))


def test_a_layer_in_two_places_has_one_adapter() -> None:
    layer = nn.Linear(WIDTH, WIDTH)
    adapted = lora(nn.Sequential(layer, nn.Tanh(), layer), rank=2, on=("0",))
    assert Model(adapted).size == 2 * 2 * WIDTH
    x = torch.randn(3, WIDTH)
    moved(adapted)
    torch.testing.assert_close(merged(adapted)(x), adapted(x))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on": ("query", "attention")}, r"on = 'attention': no Linear layer.*query, key, value, head"),
        ({"on": ()}, "name at least one"),
        ({"rank": 0}, "rank = 0"),
        ({"alpha": -1.0}, "alpha = -1"),
        ({"rank": 9}, "query has 8 inputs and 8 outputs"),
    ],
)
def test_what_cannot_be_adapted_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lora(Attention(), **settings)  # type: ignore[arg-type]  # wrong on purpose
