"""From a config to the objects that do the work. Whatever is wrong with a config or its data shows here, unspent."""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from incrowd import _validate
from incrowd._random import Randomness, SeededRandomness, SystemRandomness
from incrowd.data import (
    Clients,
    Columns,
    Examples,
    Partition,
    Split,
    dirichlet,
    hold_out,
    iid,
    load_digits,
    load_mnist,
    load_table,
    lognormal_sizes,
    read_table,
    sorted_shards,
)
from incrowd.data.clients import made_up_array, made_up_row, stand_in
from incrowd.data.examples import Labels
from incrowd.data.partition import by_sizes
from incrowd.data.reading import once
from incrowd.errors import ConfigError
from incrowd.learning import (
    CROSS_ENTROPY,
    LOSSES,
    SQUARED,
    Loss,
    Model,
    linear,
    mlp,
    small_cnn,
)
from incrowd.learning.features import (
    FeatureMap,
    OrientedEnergies,
    Spread,
    TableRows,
    TextBuckets,
    TextPieces,
    TokenGrams,
    UnitNorm,
    WithConstant,
    compose,
    from_module,
    is_picture,
    picture_map,
    transform,
    transform_federated,
)
from incrowd.learning.features.pictures import A_PICTURE
from incrowd.learning.features.table_rows import texts_of
from incrowd.learning.trial import tried_for_classes, tried_with_tokens
from incrowd.privacy.ledger.registry import state_folder
from incrowd.runs.config import (
    CnnSection,
    CommonSections,
    Config,
    EnergyFeatures,
    FunctionModel,
    GivenModel,
    LinearSection,
    MlpSection,
    ModuleFeatures,
    NoFeatures,
    PictureFeatures,
    PieceFeatures,
    TableFeatures,
    TextFeatures,
    TokenFeatures,
    UnitFeatures,
    Weights,
)
from incrowd.runs.data_config import (
    NEVER_COUNTED,
    DigitsData,
    FunctionData,
    GivenData,
    MnistData,
    Parties,
    PartitionedData,
    Table,
)
from incrowd.runs.functions import call
from incrowd.settings.local import GIVEN


@dataclass(frozen=True, kw_only=True, eq=False)
class Given:
    """What a program hands over in place of what settings name. `start` is the whole state of a module of one's own
    with which a run began that goes on.
    """

    data: Clients | None = None
    model: Model | None = None
    loss: Loss | None = None
    start: Mapping[str, Tensor] | None = None


NOTHING = Given()


def federated_data(config: CommonSections, given: Given = NOTHING) -> Clients:
    """The clients and their examples."""
    wanted = config.data
    with section("data"):
        if isinstance(wanted, Table):
            return _table(wanted)
        if isinstance(wanted, Parties):
            return _in_place_of(wanted)
        if isinstance(wanted, FunctionData):
            return _stated(_returned(wanted))
        if isinstance(wanted, GivenData):
            return _stated(_handed_over(given.data, "data"))
        split = _split(wanted)
        return Clients.of(split, _partitioned(wanted, split.train.labels), public=wanted.public)


AnyFeatures = (
    NoFeatures
    | UnitFeatures
    | EnergyFeatures
    | PictureFeatures
    | TableFeatures
    | TextFeatures
    | TokenFeatures
    | ModuleFeatures
)
Object = TypeVar("Object")


def _handed_over(given_object: Object | None, what: str) -> Object:
    if given_object is None:
        remedy = f"the run was begun by a program: let that go on, which has the {what}"
        raise ConfigError(field=what, value=None, remedy=remedy)
    return given_object


def _returned(wanted: FunctionData) -> Clients:
    returned = call(wanted.function, wanted.arguments, folder=wanted.folder, field="function")
    if not isinstance(returned, Clients):
        remedy = f"it returns {type(returned).__name__}: return incrowd.Clients"
        raise ConfigError(field="function", value=wanted.function, remedy=remedy)
    return returned


def _stated(data: Clients) -> Clients:
    """The same clients, of whom all that a ledger has to know is stated."""
    if data.public:
        return data
    if data.file is not None:
        remedy = "give it as incrowd.Table(file=..., ...): then all runs on it share one ledger, whoever began them"
        raise ConfigError(field="file", value=data.file.name, remedy=remedy)
    if not data.name:
        remedy = (
            'name the data, say name = "visits": all runs on them share one ledger, known by that name; or '
            "say public = True, where nobody is to be protected"
        )
        raise ConfigError(field="name", value=data.name, remedy=remedy)
    if data.declared is None:
        raise ConfigError(field="clients", value=None, remedy=f"{NEVER_COUNTED}, or say public = True")
    return data


def _split(data: DigitsData | MnistData) -> Split:
    """What is for clients, and what the server holds: the test examples, or some of the others, declared public."""
    split = load_digits() if data.name == "digits" else _pictures_in(data.folder)
    if data.validation is None:
        return split
    _validate.fraction(validation=data.validation)
    held_out = max(1, round(data.validation * len(split.train)))
    # Which ones they are does not depend on how the others are divided, so that runs are compared on the same.
    return hold_out(split.train, name=split.name, test_examples=held_out, randomness=SeededRandomness(seed=0))


def _pictures_in(folder: str | None) -> Split:
    """Those of four files. Which files these are is decided once, too: there may be others when they are recognised."""
    return once(("pictures", folder), lambda: load_mnist(mnist_folder(folder)))


def whole_split(data: DigitsData | MnistData) -> Split:
    """The examples as they are, whatever is held out for validation."""
    return _split(data.model_copy(update={"validation": None}))


def untouched_test(config: Config) -> Examples | None:
    """The test examples, with features, of a config that holds examples out for validation; of others None."""
    if not isinstance(config.data, PartitionedData) or config.data.validation is None:
        return None
    with section("data"):
        test = whole_split(config.data).test
    return None if test is None else featured_examples(config, test, alone=not config.data.public)


def featured_examples(
    config: CommonSections, examples: Examples, *, columns: Columns | None = None, alone: bool = False
) -> Examples:
    """Examples as the model sees them; `alone` as in `incrowd.learning.features.transform`. `columns` are those of the
    table whose rows they are.
    """
    with section("features"):
        feature_map = feature_map_for(config, examples, columns)
        return examples if feature_map is None else transform(feature_map, examples, alone=alone)


def featured(config: CommonSections, data: Clients) -> Clients:
    """The same clients with features in place of their examples: each client's own work, which costs no privacy."""
    with section("features"):
        feature_map = feature_map_for(config, data.examples, data.table)
        if feature_map is None:
            return data
        return transform_federated(feature_map, data, cache=_cache(config.features), alone=not data.public)


def randomness(config: CommonSections) -> Randomness:
    """Where noise, cohorts and first weights come from."""
    return SystemRandomness() if config.run.seed is None else _seeded("run", config.run.seed)


@contextmanager
def section(name: str) -> Iterator[None]:
    """Put the section's name before the field that an error names."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(field=f"{name}.{error.field}", value=error.value, remedy=error.remedy) from error


def _seeded(name: str, seed: int) -> SeededRandomness:
    with section(name):
        return SeededRandomness(seed=seed)


def _cache(wanted: AnyFeatures) -> Path | None:
    return None if wanted.cache is None else Path(wanted.cache)


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
    elif isinstance(wanted, TableFeatures):
        alone = TableRows(columns=_stated_columns("table", columns), bins=wanted.bins, raw=wanted.raw)
    else:
        alone = _pictures(wanted, shape)
    return compose(*texts, alone, *([WithConstant(value=wanted.constant)] if wanted.constant else []))


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
    if not is_picture(shape):
        remedy = f"it needs {A_PICTURE}; these examples are {shape}: the recipe general takes any"
        raise ConfigError(field="name", value="pictures", remedy=remedy)
    return picture_map(shape, dimensions=wanted.dimensions, cache=_learnt_from_made_up(wanted))


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


def _learnt_from_made_up(wanted: AnyFeatures) -> Path:
    """Where directions are kept that were learnt from made-up pictures alone, so that all may see them."""
    return _cache(wanted) or state_folder() / "features"


def mnist_folder(folder: str | None) -> Path:
    """Where the four files are."""
    if folder is None:
        raise ConfigError(field="folder", value=None, remedy="name the folder that holds mnist/, or give --data DIR")
    inner = Path(folder) / "mnist"
    return inner if inner.is_dir() else Path(folder)


def _partitioned(data: PartitionedData, labels: Labels) -> Partition:
    source = SeededRandomness(seed=data.seed)
    if data.partition == "shards":
        return sorted_shards(labels, clients=data.clients, per_client=data.per_client, randomness=source)
    if data.alpha is not None:
        return dirichlet(labels, clients=data.clients, alpha=data.alpha, randomness=source)
    if data.sigma is not None:
        sizes = lognormal_sizes(clients=data.clients, examples=len(labels), sigma=data.sigma, randomness=source)
        return by_sizes(labels, sizes=sizes, randomness=source)
    return iid(labels, clients=data.clients, randomness=source)


def _table(data: Table) -> Clients:
    folder = Path(data.folder or ".")
    return load_table(
        folder / data.file,
        columns=data.meaning(),
        test=None if data.test_file is None else folder / data.test_file,
        clients=data.clients,
        public=data.public,
        test_clients=data.test_clients,
        holdout_clients=data.holdout_clients,
        names=data.names,
    )


def _in_place_of(data: Parties) -> Clients:
    """Clients who hold nothing, in the place of the enrolled parties; and the public examples that the server holds."""
    names = enrolled(data)
    if data.shape:
        example = made_up_array(
            data.shape, data.type, classes=data.classes_of_arrays, scale=data.scale, offset=data.offset
        )
        return stand_in(example, names, name=data.federation)
    columns = data.meaning().resolved(())
    clients = stand_in(made_up_row(columns), names, name=data.federation, columns=columns)
    if data.test_file is None:
        return clients
    test, _ = read_table(Path(data.folder or ".") / data.test_file, columns)
    return replace(clients, test=test)


def enrolled(data: Parties) -> tuple[str, ...]:
    """The names of the parties whose enrolments lie in the folder, in order; those who have gone keep their places."""
    folder = Path(data.enrolled)
    names = tuple(sorted({path.stem for kind in ("*.pub", "*.gone") for path in folder.glob(kind)}))
    if not names:
        remedy = "name the folder that holds the enrolments which parties sent, NAME.pub"
        raise ConfigError(field="enrolled", value=str(folder), remedy=remedy)
    return names


def loss_of(name: str | None, examples: Examples, given: Given = NOTHING) -> Loss:
    """The loss of this name, or the one that the labels suggest."""
    classes = examples.classes
    if name == GIVEN:
        return _handed_over(given.loss, "loss")
    if name is None:
        return SQUARED if classes is None else CROSS_ENTROPY
    if classes is not None and name in ("squared", "poisson"):
        raise ConfigError(
            field="loss", value=name, remedy="it is for labels that are numbers, and these are classes: leave it out"
        )
    return LOSSES[name]


def model_of(config: CommonSections, examples: Examples, loss: Loss, given: Given = NOTHING) -> Model:
    """The model, for these examples and labels."""
    wanted = config.model
    if isinstance(wanted, GivenModel):
        return _started(_handed_over(given.model, "model"), given)
    if isinstance(wanted, FunctionModel):
        return _started(Model(_own_module(wanted.module, wanted.arguments, wanted.folder)), given)
    shape = examples.shape
    labels = examples.labels
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


def check_model(model: Model, data: Clients, loss: Loss) -> None:
    """Refuse a model that does not fit the classes that are stated, whichever of them there are, or, before anything is
    spent, one that could not be tested.
    """
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


def _started(model: Model, given: Given) -> Model:
    return model if given.start is None else model.loaded(given.start)


def init_scale_of(config: CommonSections) -> float:
    """By what fresh weights are multiplied."""
    return config.model.init_scale if isinstance(config.model, Weights) else 1.0


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
