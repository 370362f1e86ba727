from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from incrowd._random import SeededRandomness
from incrowd.errors import ConfigError
from incrowd.learning import Model, linear, mlp, small_cnn
from incrowd.learning.modules import has_dropout, refuse_dropout, working_copy

RANDOMNESS = SeededRandomness(seed=1)


def with_tied_weights() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    module[2].weight = module[0].weight
    return module


def with_a_frozen_part() -> nn.Module:
    """Batch normalisation and dropout, frozen, and a head."""
    body = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).requires_grad_(False)
    return nn.Sequential(body, nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), "BatchNorm1d at 1.*GroupNorm"),
        (nn.BatchNorm2d(3, track_running_stats=False), "mixes the examples"),
        (nn.InstanceNorm1d(3, affine=True, track_running_stats=True), "running statistics"),
        (nn.ReLU(), "no parameters"),
        (nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False).eval(), nn.Linear(3, 3)), "mixes the examples"),
        (nn.Linear(3, 3).requires_grad_(False), "all its parameters are frozen.*requires_grad_"),
        (nn.Linear(3, 3, device="meta"), r"on meta; call module.cpu\(\)"),
        (nn.Linear(3, 3).double(), r"float64.*float\(\)"),
        (nn.LazyLinear(3), "shape is not known yet"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_clients_cannot_train_is_refused_with_the_remedy(module: nn.Module, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Model(module)


@pytest.mark.parametrize(
    ("module", "where"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), "Dropout at 1"),
        (nn.Sequential(nn.Linear(3, 3), nn.Dropout2d(0.5)), "Dropout2d at 1"),
        (nn.GRU(3, 3, num_layers=2, dropout=0.1), "GRU at the top"),
        (nn.TransformerEncoderLayer(4, 2, 8), "MultiheadAttention at self_attn"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_dropout_is_seen(module: nn.Module, where: str) -> None:
    assert has_dropout(Model(module).module)
    with pytest.raises(ConfigError, match=f"{where}.*global generator, which no record has"):
        refuse_dropout(module)
    assert not has_dropout(module.eval())
    assert not has_dropout(with_a_frozen_part())


@pytest.mark.parametrize(
    "module",
    [
        nn.LayerNorm(4),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm1d(3, affine=True),
        nn.Sequential(nn.Linear(3, 3), nn.Dropout(0)),
        nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3)).eval(),
        nn.GRU(3, 3),
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0),
        with_a_frozen_part(),
        with_tied_weights(),
    ],
    ids=lambda one: type(one).__name__,
)
def test_layers_that_treat_each_example_alone_are_taken(module: nn.Module) -> None:
    Model(module)


def test_the_flat_vector_has_torchs_own_order() -> None:
    for model in (mlp((5, 4, 3)), small_cnn(side=16), Model(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)))):
        flat = torch.nn.utils.parameters_to_vector(model.module.parameters()).detach()
        assert torch.equal(model.weights, flat)
        assert model.layout.names == tuple(name for name, _ in model.module.named_parameters())
        assert model.size == len(flat) == sum(model.parts)


def test_parts_are_layers() -> None:
    assert mlp((5, 4, 3)).parts == (24, 15)
    assert mlp((5, 4, 3), bias=False).parts == (20, 12)
    assert Model(nn.Linear(2, 3)).parts == (9,)


def test_a_module_starts_from_its_own_weights() -> None:
    module = nn.Linear(3, 2)
    assert torch.equal(Model(module).initial(RANDOMNESS), torch.nn.utils.parameters_to_vector(module.parameters()))
    with pytest.raises(ConfigError, match=r"init_scale = 0.5: the module keeps its own weights.*fresh=True"):
        Model(module).initial(RANDOMNESS, init_scale=0.5)
    fresh = Model(module, fresh=True)
    assert torch.equal(fresh.initial(RANDOMNESS, init_scale=0.5), 0.5 * fresh.initial(RANDOMNESS))
    assert not torch.equal(fresh.initial(RANDOMNESS), fresh.weights)
    assert linear(3, 2).fresh


def test_what_is_frozen_is_no_part_of_the_vector_and_stays() -> None:
    module = with_a_frozen_part()
    model = Model(module, fresh=True)
    assert model.layout.names == ("1.weight", "1.bias")
    assert model.size == model.weights.numel() == 8
    assert model.parts == (8,)
    state = model.state_dict(model.initial(RANDOMNESS))
    assert state.keys() == module.state_dict().keys()
    for name, one in module.state_dict().items():
        assert torch.equal(state[name], one) == name.startswith("0")
    assert torch.equal(state["1.bias"], model.initial(RANDOMNESS)[6:])


def test_a_working_copy_shares_what_is_frozen_and_nothing_else() -> None:
    module = with_a_frozen_part()
    copied = working_copy(module, torch.device("cpu"))
    for (name, one), (_, other) in zip(module.named_parameters(), copied.named_parameters(), strict=True):
        assert (one.data_ptr() == other.data_ptr()) == name.startswith("0")
    for own, copy_of in zip(module.buffers(), copied.buffers(), strict=True):
        assert own.data_ptr() != copy_of.data_ptr()
    assert [part.training for part in copied.children()] == [False, True]
    assert all(part.training for part in module.modules())


def test_a_module_that_is_frozen_later_is_refused() -> None:
    module = nn.Linear(3, 2)
    model = Model(module)
    module.bias.requires_grad = False
    for use in (lambda: model.weights, lambda: model.with_weights(torch.zeros(8)), lambda: model.state_dict([0.0] * 8)):
        with pytest.raises(ConfigError, match="what is trained of it has changed since; make a new Model"):
            use()


def test_tied_parameters_are_one() -> None:
    module = with_tied_weights()
    model = Model(module)
    assert model.layout.names == ("0.weight", "0.bias", "2.bias")
    assert model.size == 15
    state = model.state_dict(torch.arange(15.0))
    assert torch.equal(state["0.weight"], torch.arange(9.0).view(3, 3))
    assert torch.equal(state["2.weight"], state["0.weight"])
    assert state["2.weight"].data_ptr() != state["0.weight"].data_ptr()
    twin = with_tied_weights()
    twin.load_state_dict(state)
    x = torch.ones(2, 3)
    assert torch.equal(twin(x), model.with_weights(torch.arange(15.0))(x))


@pytest.mark.parametrize("make", [with_a_frozen_part, with_tied_weights, lambda: nn.GRU(3, 4)])
def test_a_state_goes_in_and_comes_out_whole(make: Callable[[], nn.Module]) -> None:
    one, other = make(), make()
    model = Model(one).loaded(other.state_dict())
    assert not model.fresh
    for name, value in model.state_dict(model.weights).items():
        assert torch.equal(value, other.state_dict()[name])
    assert not torch.equal(Model(one).weights, model.weights)  # the module that was given is as before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"2.bias": None}, '(?s)state_dict = .*Missing key.*"2.bias"'),
        ({"3.bias": torch.ones(3)}, '(?s)Unexpected key.*"3.bias"'),
        ({"0.bias": torch.ones(4)}, "(?s)size mismatch for 0.bias"),
        ({"2.weight": torch.ones(3, 3)}, "0.weight.*tied to another"),
    ],
)
def test_a_state_of_another_module_is_refused(change: dict[str, Tensor | None], message: str) -> None:
    state = {**with_tied_weights().state_dict(), **change}
    with pytest.raises(ConfigError, match=message):
        Model(with_tied_weights()).loaded({name: one for name, one in state.items() if one is not None})
