"""The features, the model, the loss and the plans that settings name. An unusable setting is refused here, unspent."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from incrowd import _extensions, _validate
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
from incrowd.privacy.account.accounting import ACCOUNTANTS, Budget, GaussianCurve, RenyiCurve, price
from incrowd.privacy.account.calibrate import most_rounds
from incrowd.privacy.account.events import RepeatedEvent, mechanisms
from incrowd.privacy.account.events import compose as composed
from incrowd.privacy.ledger.registry import state_folder
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.plan.plan import SAMPLING, Plan, PlanConfig
from incrowd.privacy.plan.sampling import Cyclic, Schedule, constant, growing, preceded
from incrowd.runs.config import (
    CnnSection,
    CommonSections,
    Config,
    FunctionModel,
    GivenModel,
    LinearSection,
    MlpSection,
    clip_of,
)
from incrowd.runs.data_config import AnyFeatures, ModuleFeatures, NoFeatures, PieceFeatures
from incrowd.runs.sources import NOTHING, Given, call, handed_over, section
from incrowd.settings import GIVEN
from incrowd.types import FeatureMap

Figure = TypeVar("Figure", int, float)


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
        return transform_federated(feature_map, data, cache=config.features.cache, alone=not data.public)


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
    texts = [TextBuckets(columns=columns)] if columns is not None and any(texts_of(columns)) else []
    if wanted.name == "none":
        return compose(*texts) if texts else None
    if wanted.name == "tokens":
        alone: FeatureMap = TokenGrams(longest=wanted.longest, reads=wanted.reads, padding=wanted.padding)
    elif wanted.name == "text" and columns is not None:
        alone = TextPieces(columns=columns)
    elif wanted.name == "table" and columns is not None:
        alone = TableRows(columns=columns, bins=wanted.bins, raw=wanted.raw)
    elif wanted.name == "energies" and len(shape) == 2:
        alone = compose(OrientedEnergies(octave=wanted.octave, stride=wanted.stride), UnitNorm(centred=True))
    elif wanted.name == "pictures" and is_picture(shape):
        # Its directions are learnt from made-up pictures alone, so every user may see their cache.
        cache = Path(wanted.cache or state_folder() / "features")
        alone = picture_map(shape, dimensions=wanted.dimensions, cache=cache)
    elif wanted.name == "unit":
        alone = UnitNorm(centred=wanted.centred)
    elif wanted.name == "module":
        alone = _encoder(wanted)
    elif wanted.name == "map":
        made = _extensions.found("feature_maps", wanted.map, field="map")(**wanted.arguments)
        alone = from_callable(made, name=f"{wanted.map} {made.name}")
    else:
        raise ConfigError(field="name", value=wanted.name, remedy=_NEEDS[wanted.name].format(shape=shape))
    if isinstance(wanted, PieceFeatures):
        return compose(alone, Spread(buckets=wanted.buckets, constant=wanted.constant).whole) if whole else alone
    return compose(*texts, alone, *([WithConstant(value=wanted.constant)] if wanted.constant else []))


_NEEDS = {
    "energies": "they need grey images, these examples are {shape}",
    "pictures": f"it needs {A_PICTURE}; these examples are {{shape}}: the recipe general takes any",
} | dict.fromkeys(
    ("table", "text"), "it needs rows of a table and what its columns mean: give the data as one (incrowd.Table)"
)


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


def plan_of_clients(
    config: Config, budget: Budget, *, clients: int, parts: tuple[int, ...], schedule: Schedule | None
) -> Plan:
    """The plan for so many clients, who send vectors of these parts; a schedule is kept."""
    wanted = config.privacy
    cohort = float(clients) if wanted.cohort is None else wanted.cohort
    if wanted.groups is not None:
        _validate.count(groups=wanted.groups)
        cohort = clients / wanted.groups
    elif wanted.cohort is None and wanted.sampling != "everyone":
        raise ConfigError(field="cohort", value=None, remedy="say how many clients take part in a round")
    plan = PlanConfig(
        members=clients,
        schedule=schedule_of(config, cohort) if schedule is None else schedule,
        sampling=SAMPLING[wanted.sampling] if wanted.groups is None else Cyclic,
        noise_by=wanted.noise_by,
        colluders=wanted.colluders,
        clip=clip_of(wanted.clip, parts, cohort),
        accountants=ACCOUNTANTS if wanted.accountant == "tightest" else (wanted.accountant.upper(),),
    )
    return plan.calibrate(budget) if schedule is None else plan.plan(budget)


def schedule_of(config: Config, cohort: float) -> Schedule:
    """The schedule of training, after the round of the label distribution, if any."""
    share, first, rounds = config.local.label_distribution, config.privacy.grow_from, config.privacy.rounds
    if share is not None and rounds < 2:
        remedy = "plan at least 2: the first is for local.label_distribution"
        raise ConfigError(field="rounds", value=rounds, remedy=remedy)
    rounds -= share is not None
    if first is None:
        training = constant(rounds=rounds, cohort=cohort)
    else:
        training = growing(rounds=rounds, first_cohort=first, last_cohort=cohort)
    return training if share is None else preceded(training, share=share)


def declared_records(config: Config, data: Clients) -> tuple[int, ...]:
    """The public number of records of each silo: the declared one, or for public data the counted one."""
    wanted = config.privacy.records
    if wanted is None and data.public:
        return tuple(int(size) for size in data.sizes)
    if wanted is None:
        remedy = (
            "how many records a silo has is private and never counted: state a public number that it does not exceed, "
            "say records = 5000, or a list with one for each silo"
        )
        raise ConfigError(field="records", value=None, remedy=remedy)
    return _each(wanted, data.clients, field="records")


def _each(wanted: Figure | tuple[Figure, ...], silos: int, *, field: str) -> tuple[Figure, ...]:
    """One for each silo, of one for all or a list."""
    each = wanted if isinstance(wanted, tuple) else (wanted,) * silos
    if len(each) != silos:
        raise ConfigError(field=field, value=each, remedy=f"give one for each of the {silos} silos, or one")
    return each


def plan_of_all(config: Config, declared: Sequence[int], schedule: Schedule | None) -> Plan:
    """The one plan of all silos' records; a schedule is kept."""
    records, wanted = sum(declared), config.privacy
    cohort = float(config.local.batch_size or records)
    _validate.at_most(records, "the declared number of all records", batch_size=cohort)
    plan = PlanConfig(
        members=records,
        schedule=constant(rounds=wanted.rounds, cohort=cohort) if schedule is None else schedule,
        unit="record",
        noise_by=wanted.noise_by,
        parties=len(declared) if wanted.noise_by == "parties" else None,
        colluders=wanted.colluders,
        clip=FixedClip(clip_norm=wanted.clip_norm),
    )
    return plan.calibrate(wanted.budget) if schedule is None else plan.plan(wanted.budget)


def plans_of_silos(config: Config, records: Sequence[int]) -> tuple[Plan, ...]:
    """A plan for each silo; equal ones are priced once. At a stated noise it has the rounds that the budget allows."""
    wanted, local = config.privacy, config.local
    noise = wanted.noise_multiplier

    @cache
    def plan(members: int, epsilon: float) -> Plan:
        stated = PlanConfig.of_records(
            records=members,
            rounds=wanted.rounds,
            clip_norm=wanted.clip_norm,
            batch_size=local.batch_size,
            epochs=local.epochs,
            noise_multiplier=1.0 if noise is None else noise,
        )
        budget = Budget(epsilon=epsilon, delta=wanted.delta)
        return stated.calibrate(budget) if noise is None else _as_many(stated, budget)

    epsilons = _each(wanted.epsilon, len(records), field="epsilon")
    return tuple(map(plan, records, epsilons))


def _as_many(config: PlanConfig, budget: Budget) -> Plan:
    """As many of the rounds as a budget allows at the stated noise."""
    (step,) = config.schedule.steps

    def shortened(rounds: int) -> PlanConfig:
        return replace(config, schedule=Schedule((replace(step, rounds=rounds),)))

    if price(config.whole, delta=budget.delta, relation=config.relation).epsilon <= budget.epsilon:
        return config.plan(budget)
    most = most_rounds(lambda rounds: shortened(rounds).whole, budget=budget, relation=config.relation)
    return shortened(min(most, step.rounds)).plan(budget)


def spent_after(plan: Plan, rounds: int) -> float:
    """An upper bound on the epsilon of a plan's first rounds, at the budget's delta.

    Guarantee: never below what these rounds cost, never above the price of the whole plan, and exactly that after the
    last round. The bound is exact (GDP) if everyone takes part in every round; otherwise it is by RDP, which takes well
    under a millisecond, while the tight figure takes most of a second.
    """
    if not 0 < rounds < plan.rounds:
        return plan.price.epsilon if rounds else 0.0
    first: list[RepeatedEvent] = []
    for event, count in plan.runs:
        first += [(event, min(count, rounds))] if rounds > 0 else []
        rounds -= count
    runs = mechanisms(composed(first))
    curve = GaussianCurve(runs) if GaussianCurve.supports(runs) else RenyiCurve(runs, plan.relation)
    return min(curve.epsilon(plan.budget.delta), plan.price.epsilon)
