"""Recipes: default hyperparameters that follow from public facts about a federation (docs/recipes.md).

A recipe sees an `Outline` alone: the number of clients or records, the budget, the shape of an example. It reads no
example, so its choice costs nothing. Settings that the user states stay as they are.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from incrowd.data.clients import Clients
from incrowd.data.examples import form
from incrowd.errors import ConfigError
from incrowd.learning.features.pictures import A_PICTURE, is_picture
from incrowd.learning.features.table_rows import PLACES, bare, texts_of
from incrowd.learning.losses import CROSS_ENTROPY, LOGISTIC
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.planner import signal
from incrowd.runs.build import declared_records, loss_of, model_of
from incrowd.runs.config import Config, LinearSection, parse
from incrowd.runs.sources import NOTHING, Given, federated_data, section

Tables = dict[str, dict[str, Any]]

MANY = 5000  # with so many clients or more a tenth takes part in each round, which takes less time
ROUNDS = 30
MOMENTUM = 0.7  # steps across a narrow valley cancel out, and the noise in the sum of all steps is the same
CONSTANT = 0.1  # the feature that is a linear model's bias, with a hundredth of the square of an example
LABEL_SHARES, SHARES_OF_TWO = 0.03, 1.0  # the smoothing of a client's label distribution, of many classes and of two
CLIP, TEXT_CLIP = 0.2, 0.1  # for two classes; texts share few words, so that their mean gradients are shorter
QUERY = 0.02  # the share of the sum of 1 / noise^2 over all rounds that the query for the label distribution gets
RECORD_CLIP = 0.3  # the bound of a record's gradient, whose length is about one before anything is learnt
NUMBER_CLIP = 0.05  # the bound of labels that are numbers
MOST_STEPS = 4000.0  # the sum of all steps in lengths of an update: beyond it training, not noise, is the limit
BUCKETS, FEW_BUCKETS = 16_384, 1024  # of texts: noise is as loud in a row of any number, and many have few collisions
MOST_NUMBERS = 8192  # features that the numbers of a row without a range may become: beyond it a row is seen as it is
MANY_CLASSES = 20  # a sequence's label of more classes is taken for the token that follows, otherwise for its kind


@dataclass(frozen=True, kw_only=True)
class Outline:
    """The public facts of a federation, which are all that a recipe may know.

    The budget protects so many `clients`, or with `records` so many records of each of the `silos`. Examples have this
    `shape`; they are `whole` numbers (tokens), a `row` of a table of which so many numbers are `bare` of a range, or
    `texts`. With `places` an example has a class for each of its places. Labels that are numbers have a `label_range`.
    The user may bring an `own_model`, which is `biased` if its last parameter is a bias.
    """

    clients: int
    budget: Budget
    shape: tuple[int, ...]
    classes: int | None
    silos: int = 1
    records: bool = False
    whole: bool = False
    row: bool = False
    bare: int = 0
    texts: bool = False
    places: bool = False
    label_range: tuple[float, float] | None = None
    own_model: bool = False
    biased: bool = True

    @classmethod
    def of(cls, data: Clients, budget: Budget, *, own_model: bool, loss: str | None = None) -> "Outline":
        """The public facts of some clients, who are to learn by this loss; unless it is named it follows from labels.

        Guarantee: only shapes and types of examples and labels are read.
        """
        forms = form(data.examples.features)
        classes = 2 if data.examples.classes is None and loss == LOGISTIC.name else data.examples.classes
        return cls(
            clients=data.clients,
            budget=budget,
            shape=forms[0][1],
            classes=classes if loss in (None, CROSS_ENTROPY.name, LOGISTIC.name) else None,
            whole=len(forms) > 1 or forms[0][2] in ("int64", "bool"),
            row=data.table is not None,
            bare=0 if data.table is None else len(bare(data.table)),
            texts=data.table is not None and all(texts_of(data.table)),
            places=data.examples.labels.ndim > 1 and data.examples.classes is not None,
            label_range=None if data.table is None else data.table.label_range,
            own_model=own_model,
        )

    @cached_property
    def signal(self) -> float:
        """The signal-to-noise ratio of one release about everyone: how many parameters the budget can estimate
        (`incrowd.privacy.plan.signal`). Silos are averaged, which makes their noise less.
        """
        return signal(self.clients, self.budget) * math.sqrt(self.silos)


Recipe = Callable[[Outline], Tables]
"""A way to learn: public facts become tables of settings."""


def general(facts: Outline) -> Tables:
    """Softmax regression on examples of length one, or the training of a model of your own."""
    # The mean of a picture is its brightness; the mean of other numbers may be the signal.
    return _learned(facts, {"name": "unit", "centred": len(facts.shape) > 1, "constant": CONSTANT})


def images(facts: Outline) -> Tables:
    """Softmax regression on features of pictures; the stronger the signal, the more directions."""
    directions = 2 ** min(10, max(6, round(math.log2(facts.signal))))
    return _learned(facts, {"name": "pictures", "dimensions": directions, "constant": CONSTANT})


def tables(facts: Outline) -> Tables:
    """Softmax regression on rows of a table, by what is stated of its columns."""
    if facts.row and facts.bare * PLACES <= MOST_NUMBERS:
        return _learned(facts, {"name": "table", "bins": 8, "raw": 0.5, "constant": CONSTANT})
    return _learned(facts, {"name": "unit", "centred": False, "constant": CONSTANT})


def text(facts: Outline) -> Tables:
    """Softmax regression on pieces of texts (n-grams) in buckets, of tokens or of a table's columns."""
    if facts.texts or facts.own_model:
        buckets = FEW_BUCKETS if facts.signal < FEW_BUCKETS / 2 and facts.classes == 2 else BUCKETS
        return _learned(facts, {"name": "text", "buckets": buckets, "constant": CONSTANT})
    if not facts.whole or len(facts.shape) != 1:
        remedy = f"examples are {facts.shape}: give sequences of tokens, or bring a model of your own (model.module)"
        if not facts.whole:
            remedy = (
                'examples are no texts: state what columns are texts (data.columns.note = {kind = "text"}), or give '
                "tokens (int64), or take general or tables"
            )
        raise ConfigError(field="recipe", value="text", remedy=remedy)
    reads = "end" if (facts.classes or 0) > MANY_CLASSES else "all"
    sizes = {"buckets": FEW_BUCKETS, "longest": 3, "constant": CONSTANT}
    return _learned(facts, {"name": "tokens", "reads": reads, **sizes})


RECIPES: dict[str, Recipe] = {each.__name__: each for each in (general, images, tables, text)}

_SHRINKING = {"decay": "linear", "average": "tail"}  # the steps of the server


def _learned(facts: Outline, features: dict[str, Any]) -> Tables:
    """A linear model on these features and its training, or the training of a model of your own."""
    if facts.own_model:
        return _network_of_records() if facts.records else _network(facts)
    model: dict[str, Any] = {"kind": "linear", "bias": False, "init_scale": 0.0}
    if facts.label_range is not None:
        model["label_range"] = facts.label_range
    trained = _records(facts) if facts.records else _numbers(facts) if facts.label_range else _classes(facts)
    return {"features": features, "model": model, **trained}


def _step(facts: Outline) -> float:
    """The server's first learning rate for updates of length one: the steps of all rounds, which shrink linearly, add
    up to the signal. So noise in the logits is the same at any budget, and what is learnt grows with the budget.
    """
    return 2 * min(facts.signal, MOST_STEPS) / ROUNDS


def _classes(facts: Outline) -> Tables:
    """One step a round along the gradient of all of a client's examples, at length 1.

    With two classes many clients may have one alone. At length 1 they would drown the others: a bound leaves their
    short gradients short.
    """
    local: dict[str, Any] = {"learning_rate": 1.0, "shuffle": False}
    privacy: dict[str, Any] = {"rounds": ROUNDS, **_who(facts)}
    rate = _step(facts)
    if facts.classes is not None:
        local["label_shares"] = SHARES_OF_TWO if facts.classes == 2 else LABEL_SHARES
    if facts.classes == 2:
        bound = TEXT_CLIP if facts.texts else CLIP
        privacy["clip"] = {"kind": "fixed", "clip_norm": bound}
        rate /= bound
    server = {"kind": "momentum", "momentum": MOMENTUM, "learning_rate": rate * (1 - MOMENTUM), **_SHRINKING}
    return {"local": local, "server": server, "privacy": privacy}


def _numbers(facts: Outline) -> Tables:
    """One step a round along the gradient of the squared error of labels scaled to -1 .. 1, clipped."""
    return {
        "local": {"learning_rate": _scale(facts), "shuffle": False},
        "server": {"learning_rate": _step(facts) / NUMBER_CLIP / 10, **_SHRINKING},
        "privacy": {"rounds": ROUNDS, "clip": {"kind": "fixed", "clip_norm": NUMBER_CLIP}, **_who(facts)},
    }


def _records(facts: Outline) -> Tables:
    """DP-SGD with all records in each step (DP-GD), a step a round; silos' models are averaged."""
    return {
        "local": {"learning_rate": _scale(facts) * _step(facts) / RECORD_CLIP, "epochs": 1.0},
        "server": {"learning_rate": 1.0, **_SHRINKING},
        "privacy": {"rounds": ROUNDS, "clip_norm": RECORD_CLIP},
    }


def _network(facts: Outline) -> Tables:
    """A network: two passes in ten batches at each client, long steps of the server."""
    local: dict[str, Any] = {"learning_rate": 0.1, "batches": 10, "epochs": 2}
    if facts.classes is not None:
        local["label_shares"] = 0.1
    rounds = 12 if facts.signal < 1000 else ROUNDS
    return {
        "local": local,
        "server": {"learning_rate": 4.0, **_SHRINKING},
        "privacy": {"rounds": rounds, **_who(facts)},
    }


def _network_of_records() -> Tables:
    """A network in silos: DP-SGD with all records in each step, four steps a round."""
    local = {"learning_rate": 0.5, "epochs": 4.0}
    return {"local": local, "server": {"average": "tail"}, "privacy": {"rounds": ROUNDS}}


def _scale(facts: Outline) -> float:
    """The rate at which gradients are those of labels from -1 to 1; 1 for classes."""
    return 1.0 if facts.label_range is None else 4 / (facts.label_range[1] - facts.label_range[0]) ** 2


def _who(facts: Outline) -> dict[str, Any]:
    """Everyone, or a share of many."""
    if facts.clients < MANY:
        return {"sampling": "everyone"}
    return {"sampling": "poisson", "cohort": float(math.ceil(facts.clients / 10))}


def config_of(settings: Mapping[str, Any]) -> Config:
    """The config that tables of TOML spell, completed by the recipe that they name, if any."""
    stated = dict(settings)
    name = stated.pop("recipe", None)
    return parse(stated if name is None else with_recipe(stated, str(name)))


def with_recipe(settings: Mapping[str, Any], name: str, *, given: Given = NOTHING) -> Tables:
    """Settings, as the tables of a TOML file, completed by the recipe of this name."""
    recipe, config, remedy = named(name), parse(settings), None
    with section("privacy"):
        budget = config.privacy.budget
    data = federated_data(config, given)
    own_model = not isinstance(config.model, LinearSection)
    facts = Outline.of(data, budget, own_model=own_model, loss=config.local.loss)
    if config.of_records and not config.privacy.by_silo:
        remedy = 'recipes know silos that noise their own steps: leave it out, or use "party"'
    elif config.of_records:
        with section("privacy"):
            fewest = min(declared_records(config, data))
        facts = replace(facts, clients=fewest, silos=data.clients, records=True)
    if own_model and remedy is None:
        with section("model"):
            model = model_of(config, data.examples, loss_of(config.local.loss, data.examples, given), given)
        facts = replace(facts, biased=model.layout.names[-1].endswith("bias"))
    ranged = facts.label_range is not None and name == "tables" and not own_model
    if remedy is None and facts.classes is None and not ranged and "learning_rate" not in settings.get("server", {}):
        remedy = (
            "labels are numbers, of a scale that no recipe knows: state data.label_range and take tables, or state "
            'server.learning_rate, too; if they are yes and no, local.loss = "logistic"'
        )
    if remedy is not None:
        raise ConfigError(field="recipe", value=name, remedy=remedy)
    return completed(settings, recipe, facts)


def named(name: str) -> Recipe:
    """The recipe of this name."""
    if name not in RECIPES:
        raise ConfigError(field="recipe", value=name, remedy=f"choose from {', '.join(RECIPES)}")
    return RECIPES[name]


def completed(settings: Mapping[str, Any], recipe: Recipe, facts: Outline) -> Tables:
    """The settings, and the recipe's wherever they state nothing.

    Guarantee: no value that the settings state is changed. Features or a model that they name go without the recipe's
    keys for others.
    """
    if not facts.own_model:
        _check_fits(recipe.__name__, facts, features="name" in settings.get("features", {}))
    advised = recipe(facts)
    _ask_label_distribution(advised, settings, facts)
    for name, key in (("features", "name"), ("model", "kind"), ("model", "module")):
        if key in settings.get(name, {}):
            advised.pop(name, None)
    privacy = settings.get("privacy", {})
    clash = {"noise": ("sampling", "cohort"), "sampling": ("cohort",)}
    if "clip" in privacy and "clip" in advised["privacy"]:  # the rate was that of the recipe's own bound
        advised["server"]["learning_rate"] *= advised["privacy"].pop("clip")["clip_norm"]
    if "kind" in settings.get("server", {}) and advised["server"].pop("momentum", None) is not None:
        advised["server"]["learning_rate"] /= 1 - MOMENTUM
    if {"batch_size", "batches"} & settings.get("local", {}).keys():  # one of the two
        advised["local"].pop("batches", None)
    for stated, without in clash.items():
        for name in without if stated in privacy else ():
            advised["privacy"].pop(name, None)
    return {name: {**advised.get(name, {}), **settings.get(name, {})} for name in {**advised, **settings}}


def _check_fits(name: str, facts: Outline, *, features: bool) -> None:
    """Refuse what no linear model of the recipe learns from, before any client is asked; `features` says whether the
    settings name features.
    """
    remedy = None
    if facts.classes is not None and facts.classes < 2:
        remedy = f"labels are of {facts.classes} class, which leaves nothing to learn: give data.classes of 2 or more"
    elif facts.places:
        remedy = "an example has a class for each of its places: bring a model that says them all (model.module)"
    elif name != "text" and facts.whole and not features:
        remedy = (
            "examples are whole numbers, which are tokens, or several inputs: bring a model that takes them "
            "(model.module), or give one array of float32, or pixels as uint8 with data.scale"
        )
    elif name == "images" and not is_picture(facts.shape) and not features:
        remedy = f"it needs {A_PICTURE}; these examples are {facts.shape}: take general, or tables"
    if remedy is not None:
        raise ConfigError(field="recipe", value=name, remedy=remedy)


def _ask_label_distribution(advised: Tables, settings: Mapping[str, Any], facts: Outline) -> None:
    """Begin with the query for everyone's label distribution, where settings and the model let it."""
    local, privacy = settings.get("local", {}), settings.get("privacy", {})
    clip = privacy.get("clip", {}).get("kind", "normalised")
    usual = clip in ("normalised", "fixed") and privacy.get("noise", "independent") == "independent"
    asks = local.get("label_distribution", ...) is not None and local.get("label_shares", ...) is not None
    if facts.biased and "label_shares" in advised["local"] and usual and asks and privacy.get("rounds", math.inf) > 1:
        advised["local"]["label_distribution"] = QUERY
        advised["privacy"]["rounds"] += 1
