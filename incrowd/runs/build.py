"""The features, the model and the loss that settings name. An unusable setting is refused here, unspent."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from incrowd import _extensions
from incrowd._random import Randomness, SeededRandomness, SystemRandomness
from incrowd.data.clients import Clients
from incrowd.data.columns import Columns
from incrowd.data.examples import Examples
from incrowd.errors import ConfigError
from incrowd.learning.features.energies import OrientedEnergies
from incrowd.learning.features.feature_map import UnitNorm, WithConstant, compose, from_callable, from_module
from incrowd.learning.features.pictures import A_PICTURE, is_picture, picture_map
from incrowd.learning.features.pieces import Spread, TextBuckets, TextPieces, TokenGrams
from incrowd.learning.features.table_rows import TableRows, texts_of
from incrowd.learning.features.transform import transform, transform_federated
from incrowd.learning.losses import CROSS_ENTROPY, LOSSES, SQUARED, Loss
from incrowd.learning.models import Model, linear, mlp, small_cnn
from incrowd.learning.trial import tried_for_classes, tried_with_tokens
from incrowd.privacy.ledger.registry import state_folder
from incrowd.runs.config import (
    CnnSection,
    CommonSections,
    FunctionModel,
    GivenModel,
    LinearSection,
    MlpSection,
    Weights,
)
from incrowd.runs.data_config import (
    AnyFeatures,
    EnergyFeatures,
    MapFeatures,
    ModuleFeatures,
    NoFeatures,
    PictureFeatures,
    PieceFeatures,
    TableFeatures,
    TokenFeatures,
    UnitFeatures,
)
from incrowd.runs.sources import NOTHING, Given, call, handed_over, section
from incrowd.settings import GIVEN
from incrowd.types import FeatureMap


def featured_examples(config: CommonSections, examples: Examples, *, columns: Columns | None = None) -> Examples:
    """Examples as the model sees them; `columns` are those of the table whose rows they are."""
    with section("features"):
        feature_map = feature_map_for(config, examples, columns)
        return examples if feature_map is None else transform(feature_map, examples)


def featured(config: CommonSections, data: Clients) -> Clients:
    """The same clients with features in place of their examples: each client's own work, which costs no privacy."""
    with section("features"):
        feature_map = feature_map_for(config, data.examples, data.table)
        if feature_map is None:
            return data
        return transform_federated(feature_map, data, cache=_cache(config.features), alone=not data.public)


def randomness(config: CommonSections) -> Randomness:
    """The source of noise, cohorts and first weights."""
    with section("run"):
        return SystemRandomness() if config.run.seed is None else SeededRandomness(seed=config.run.seed)


def feature_map_for(config: CommonSections, examples: Examples, columns: Columns | None) -> FeatureMap | None:
    """The map for examples whose model these settings name: one of ours counts pieces itself (`Spread`)."""
    shape = () if isinstance(config.features, NoFeatures) else examples.shape  # without features, inputs may be several
    whole = not isinstance(config.model, LinearSection | MlpSection)
    return feature_map_of(config.features, shape, columns, whole=whole)


def feature_map_of(
    wanted: AnyFeatures, shape: tuple[int, ...], columns: Columns | None = None, *, whole: bool = True
) -> FeatureMap | None:
    """The map that settings name, for examples of this shape, or for rows of a table with these columns; None where
    examples stay as they are. Unless it is `whole`, a model counts pieces itself.
    """
    if isinstance(wanted, PieceFeatures):
        pieces = _pieces(wanted, columns)
        return compose(pieces, Spread(buckets=wanted.buckets, constant=wanted.constant).whole) if whole else pieces
    texts = [TextBuckets(columns=columns)] if columns is not None and any(texts_of(columns)) else []
    if isinstance(wanted, NoFeatures):
        return compose(*texts) if texts else None
    if isinstance(wanted, EnergyFeatures):
        alone: FeatureMap = _energies(wanted, shape)
    elif isinstance(wanted, UnitFeatures):
        alone = UnitNorm(centred=wanted.centred)
    elif isinstance(wanted, ModuleFeatures):
        alone = _encoder(wanted)
    elif isinstance(wanted, MapFeatures):
        made = _extensions.found("feature_maps", wanted.map, field="map")(**wanted.arguments)
        alone = from_callable(made, name=f"{wanted.map} {made.name}")
    elif isinstance(wanted, TableFeatures):
        alone = TableRows(columns=_stated_columns("table", columns), bins=wanted.bins, raw=wanted.raw)
    else:
        alone = _pictures(wanted, shape)
    return compose(*texts, alone, *([WithConstant(value=wanted.constant)] if wanted.constant else []))


def _cache(wanted: AnyFeatures) -> Path | None:
    return None if wanted.cache is None else Path(wanted.cache)


def _pieces(wanted: PieceFeatures, columns: Columns | None) -> FeatureMap:
    if isinstance(wanted, TokenFeatures):
        return TokenGrams(longest=wanted.longest, reads=wanted.reads, padding=wanted.padding)
    return TextPieces(columns=_stated_columns("text", columns))


def _stated_columns(name: str, columns: Columns | None) -> Columns:
    if columns is None:
        remedy = "it needs rows of a table and what its columns mean: give the data as one (incrowd.Table)"
        raise ConfigError(field="name", value=name, remedy=remedy)
    return columns


def _energies(wanted: EnergyFeatures, shape: tuple[int, ...]) -> FeatureMap:
    if len(shape) != 2:
        raise ConfigError(field="name", value="energies", remedy=f"they need grey images, these examples are {shape}")
    return compose(OrientedEnergies(octave=wanted.octave, stride=wanted.stride), UnitNorm(centred=True))


def _pictures(wanted: PictureFeatures, shape: tuple[int, ...]) -> FeatureMap:
    """Its directions are learnt from made-up pictures alone, so every user may see their cache."""
    if not is_picture(shape):
        remedy = f"it needs {A_PICTURE}; these examples are {shape}: the recipe general takes any"
        raise ConfigError(field="name", value="pictures", remedy=remedy)
    return picture_map(shape, dimensions=wanted.dimensions, cache=_cache(wanted) or state_folder() / "features")


def _encoder(wanted: ModuleFeatures) -> FeatureMap:
    """A frozen module of the user's, with its weights from a file, whose outputs have length one."""
    module = _own_module(wanted.module, wanted.arguments, wanted.folder)
    if wanted.weights is not None:
        try:
            module.load_state_dict(load_file(wanted.weights))
        except (OSError, RuntimeError, SafetensorError) as error:
            remedy = f"give a file of the module's state, of safetensors: {error}"
            raise ConfigError(field="weights", value=wanted.weights, remedy=remedy) from error
    return compose(from_module(module, name=wanted.module), UnitNorm())


def loss_of(name: str | None, examples: Examples, given: Given = NOTHING) -> Loss:
    """The loss of this name, or the one that the labels suggest."""
    classes = examples.classes
    if name == GIVEN:
        return handed_over(given.loss, "loss")
    if name is None:
        return SQUARED if classes is None else CROSS_ENTROPY
    if classes is not None and name in ("squared", "poisson"):
        remedy = "it is for labels that are numbers, and these are classes: leave it out"
        raise ConfigError(field="loss", value=name, remedy=remedy)
    return LOSSES[name]


def model_of(config: CommonSections, examples: Examples, loss: Loss, given: Given = NOTHING) -> Model:
    """The model, for these examples and labels."""
    wanted = config.model
    if isinstance(wanted, GivenModel | FunctionModel):
        if isinstance(wanted, GivenModel):
            model = handed_over(given.model, "model")
        else:
            model = Model(_own_module(wanted.module, wanted.arguments, wanted.folder))
        return model if given.start is None else model.loaded(given.start)
    shape, labels = examples.shape, examples.labels
    several = labels.shape[1] if labels.ndim > 1 else 1
    outputs = (examples.classes or 1) if loss is CROSS_ENTROPY else several
    if isinstance(wanted, CnnSection):
        if len(shape) not in (2, 3) or shape[-1] != shape[-2]:
            raise ConfigError(field="kind", value="cnn", remedy=f"it needs square images, these examples are {shape}")
        return small_cnn(side=shape[-1], channels=shape[0] if len(shape) == 3 else 1, outputs=outputs)
    hidden = wanted.hidden if isinstance(wanted, MlpSection) else ()
    if isinstance(config.features, PieceFeatures):
        buckets, constant = config.features.buckets, config.features.constant
        counted = mlp((buckets + bool(constant), *hidden, outputs), bias=wanted.bias).module
        return Model(nn.Sequential(Spread(buckets=buckets, constant=constant), *[*counted.children()][1:]), fresh=True)
    if isinstance(wanted, MlpSection):
        return mlp((math.prod(shape), *hidden, outputs), bias=wanted.bias)
    return linear(math.prod(shape), outputs, bias=wanted.bias, label_range=wanted.label_range)


def init_scale_of(config: CommonSections) -> float:
    """The factor of fresh weights."""
    return config.model.init_scale if isinstance(config.model, Weights) else 1.0


def check_model(model: Model, data: Clients, loss: Loss) -> None:
    """Refuse a model that does not fit all stated classes, or that could not be tested, before anything is spent."""
    if data.examples.classes is not None:
        tried_for_classes(model, *data.examples.as_tensors(), data.examples.classes, loss)
    if data.test is not None:
        tried_with_tokens(model, data.test.as_tensors()[0], what="test examples")


def _own_module(source: str, arguments: Mapping[str, Any], folder: str | None) -> nn.Module:
    module = call(source, arguments, folder=folder, field="module")
    if not isinstance(module, nn.Module):
        remedy = f"it returns {type(module).__name__}: return a torch.nn.Module"
        raise ConfigError(field="module", value=source, remedy=remedy)
    return module
