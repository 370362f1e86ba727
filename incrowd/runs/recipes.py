"""Recipes: settings that suit a federation, from what everybody may know of it.

| recipe        | what it knows beforehand                                                           |
| ------------- | ---------------------------------------------------------------------------------- |
| `general`     | nothing: each example as a vector of length one, or a module of your own           |
| `images`      | that examples are pictures, of things of a few parts, edges and textures           |
| `tables`      | what is stated of a table's columns: ranges, levels, texts                         |
| `text`        | that examples are texts of a table's columns, or sequences of tokens               |

A recipe sees an `Outline` alone: the number of clients, the budget, the form of an example. So it looks at nobody, and
what it chooses costs nothing. What settings state themselves stays as they state it.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from incrowd.data import Clients
from incrowd.data.inputs import form
from incrowd.errors import ConfigError
from incrowd.learning.features.pictures import A_PICTURE, GreyPictures, in_colour, is_picture
from incrowd.learning.features.sizes import PLACES
from incrowd.learning.features.table_rows import bare, texts_of
from incrowd.learning.losses import CROSS_ENTROPY, LOGISTIC
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.planner import signal
from incrowd.runs.build import NOTHING, Given, federated_data, loss_of, model_of, section
from incrowd.runs.config import Config, LinearSection
from incrowd.runs.settings import settings_of
from incrowd.runs.silo_config import SiloConfig

Tables = dict[str, dict[str, Any]]

MANY = 5000
"""From so many clients on, a share of them in each round does what all of them would, in less time."""

WEAK = 60.0
"""Below such a signal noise rules."""

CLEAR = 400.0
"""From such a signal on, what a model has learnt is more than noise."""

STRONG = 5000.0
"""From such a signal on, what is learned of pictures is less than noise allows: more rounds come closer to it."""

CONSTANT = 0.1
"""A feature that every example has: the bias of a linear model, whose gradient leaves the other weights room."""

SHARES, SHARES_OF_TWO = 0.03, 0.3
"""What is added to the share of a class among a client's labels: see `incrowd.learning.label_shares`."""

QUERY = 0.02
"""The share of the sum of 1 / noise^2 over all rounds that the query for everyone's label distribution gets."""

SHARES_OF_TEXTS = 0.3
"""The same of texts, whose labels are rarely as uneven as shards are."""

BUCKETS_OF_TEXTS = 16_384
"""That a text's pieces are counted in. Fewer lose words to each other, and noise is as loud in a row of any width."""

FAINT, SHORTER, SLOWER = 150.0, 0.5, 0.6
"""Below such a signal two classes of texts are learned with half the bound and .6 of a step: gradients of texts are
short, and a bound above them lets noise through.
"""

SHARES_OF_FEW = 1.0
"""The same where clients have few rows, whose shares are luck for the most part."""

MANY_CLASSES = 20
"""From more classes than these on, a sequence's label is taken for the token that follows, elsewhere for its kind."""

RAW_OF_SEVERAL = 0.2
"""The share of a picture's pixels where it has several labels, which features of pictures may not tell apart."""

FINE, SUMS_OF_FINE = 3072, 4096
"""Of pictures of more numbers than these, so many sums of pixels are told in place of a thousand, which drown a pattern
of single pixels in those that they were added to. Noise is as loud in an example of any width.
"""

RAW_OF_ROWS, RAW_OF_SIZES, RAW_BESIDE_TEXTS = 0.5, 0.2, 0.1
"""The share of a row's numbers as they are encoded, where some have no range, and where there are texts, which would be
heard less. Without it numbers that fill a hundredth of their stated range were hardly told apart.
"""

MOST_NUMBERS = 8192
"""That numbers without a range may become in a row: of more of them a row is seen as it is."""

BOUND_OF_TWO = 0.1
"""Of two classes: see `mechanism`."""

HEARD = 1000.0
"""From such a signal on, it is heard how long gradients of rows are, and what their constant says."""

BOUNDS_OF_ROWS, BOUNDS_OF_TEXTS = (0.2, 0.3), (0.12, 0.18)
"""Of rows of a table, of two classes, below that signal and from it on: nobody's are right all the time, so that even
at the end gradients are long. Those of rows with texts, which have few words in common, are shorter.
"""

CONSTANTS_OF_ROWS = (CONSTANT, 0.3)


@dataclass(frozen=True, kw_only=True)
class Outline:
    """What everybody may know of a federation, which is all that a recipe may know.

    `shape` is that of an example, `whole` says whether it is of whole numbers (tokens), `row` whether it is a row of a
    table, `bare` how many of its numbers have no stated range, `wordy` whether a column that is learned from is a text
    and `texts` whether each is, `several` whether an example has more labels than one, `places` whether each of those
    is a class, `label_range` is that of labels that are numbers, `own_model` says whether the user brings a model, and
    `biased` whether its last parameter is a bias.
    """

    clients: int
    budget: Budget
    shape: tuple[int, ...]
    classes: int | None
    whole: bool = False
    row: bool = False
    bare: int = 0
    wordy: bool = False
    texts: bool = False
    several: bool = False
    places: bool = False
    label_range: tuple[float, float] | None = None
    own_model: bool = False
    biased: bool = True

    @classmethod
    def of(cls, data: Clients, budget: Budget, *, own_model: bool, loss: str | None = None) -> "Outline":
        """The public facts of some clients, who are to learn by this loss; unless it is named it follows from labels.

        Guarantee: of examples and labels only shapes and types are read.
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
            wordy=data.table is not None and any(texts_of(data.table)),
            texts=data.table is not None and all(texts_of(data.table)),
            several=data.examples.labels.ndim > 1,
            places=data.examples.labels.ndim > 1 and data.examples.classes is not None,
            label_range=None if data.table is None else data.table.label_range,
            own_model=own_model,
        )

    @cached_property
    def signal(self) -> float:
        """See `incrowd.privacy.plan.signal`."""
        return signal(self.clients, self.budget)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A way to learn: `settings` turns public facts into tables of settings."""

    name: str
    prior: str
    settings: Callable[[Outline], Tables]


def general(facts: Outline) -> Tables:
    """Softmax regression on examples of length one; of a model of somebody's own, how to train it."""
    if facts.own_model:
        return network(facts)
    # The mean of a picture is its brightness; that of other numbers may be all that there is.
    features = {"name": "unit", "centred": len(facts.shape) > 1, "constant": CONSTANT}
    return {"features": features, "model": _LINEAR, **mechanism(facts)}


def images(facts: Outline) -> Tables:
    """Softmax regression on features of pictures; the stronger the signal, the more directions."""
    if facts.own_model:
        return network(facts)
    features: dict[str, Any] = {"name": "pictures", "dimensions": directions(facts), "constant": CONSTANT}
    if is_picture(facts.shape) and not in_colour(facts.shape):
        count = min(features["dimensions"], GreyPictures().count(facts.shape))
        features |= {"dimensions": count, "whitening": lift(count)}
    how = mechanism(facts)
    if facts.signal >= STRONG:
        how["privacy"]["rounds"] = 60
    if math.prod(facts.shape) > FINE:
        features["pixels"] = SUMS_OF_FINE
    if facts.several:
        features["raw"] = RAW_OF_SEVERAL
    return {"features": features, "model": _LINEAR, **how}


def tables(facts: Outline) -> Tables:
    """Softmax regression on rows of a table, by what is stated of its columns; numbers without a range by their size.

    Rows are noisy: nobody's are right all the time, so that an update says by its length how much is left to learn.
    Under much noise nobody hears that.
    """
    if facts.own_model:
        return network(facts)
    features: dict[str, Any] = {"name": "unit", "centred": False, "constant": CONSTANT}
    seen = facts.row and facts.bare * PLACES <= MOST_NUMBERS
    if seen:
        features = {
            "name": "table",
            "bins": 4 if facts.signal < 150 else 8,
            "raw": RAW_BESIDE_TEXTS if facts.wordy else RAW_OF_SIZES if facts.bare else RAW_OF_ROWS,
            "constant": CONSTANTS_OF_ROWS[facts.signal >= HEARD],
        }
    if facts.label_range is not None:
        return {"features": features, "model": {**_LINEAR, "label_range": facts.label_range}, **numbers(facts)}
    told = seen and facts.classes == 2 and facts.signal >= WEAK
    how = clipped(facts) if told else mechanism(facts)
    return {"features": features, "model": _LINEAR, **how}


def text(facts: Outline) -> Tables:
    """Softmax regression on pieces of texts (n-grams) in buckets, of tokens or of a table's columns."""
    if facts.own_model:
        return network(facts)
    features: dict[str, Any] = {"name": "text", "buckets": BUCKETS_OF_TEXTS, "constant": CONSTANT}
    if facts.whole:
        if len(facts.shape) != 1:
            remedy = (
                f"examples are {facts.shape}: give sequences of tokens, or bring a model of your own (model.module)"
            )
            raise ConfigError(field="recipe", value="text", remedy=remedy)
        reads = "end" if (facts.classes or 0) > MANY_CLASSES else "all"
        buckets = 512 if facts.signal < 150 else 1024
        features = {"name": "tokens", "buckets": buckets, "longest": 3, "reads": reads, "constant": CONSTANT}
    elif not facts.texts:
        remedy = (
            'examples are no texts: state what columns are texts (data.columns.note = {kind = "text"}), or give tokens '
            "(int64), or take general or tables"
        )
        raise ConfigError(field="recipe", value="text", remedy=remedy)
    how = mechanism(facts)
    if facts.classes is not None:
        how["local"]["label_shares"] = SHARES_OF_TEXTS
    if facts.texts and facts.classes == 2 and facts.signal < FAINT:
        how["privacy"]["clip"]["clip_norm"] *= SHORTER
        how["server"]["learning_rate"] *= SLOWER / SHORTER
    return {"features": features, "model": _LINEAR, **how}


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(name="general", prior="nothing", settings=general),
        Recipe(name="images", prior="pictures look like made-up ones", settings=images),
        Recipe(name="tables", prior="what is stated of the columns", settings=tables),
        Recipe(name="text", prior="examples are texts", settings=text),
    )
}

_LINEAR: dict[str, Any] = {"kind": "linear", "bias": False, "init_scale": 0.0}


def directions(facts: Outline) -> int:
    """How many numbers of an example are looked at."""
    colour = in_colour(facts.shape)
    for least, count in ((CLEAR, 1024), (150, 256 if colour else 512), (60, 128)):
        if facts.signal >= least:
            return count
    return 64


def lift(count: int) -> float:
    """How much the faint ones of so many directions of a grey picture are raised (`Whitened.whitening`): the more there
    are, the fainter are the last, and the more of what they show is of no picture in particular.
    """
    return 0.5 if count < 512 else 0.4 if count < 1024 else 0.3


def mechanism(facts: Outline) -> Tables:
    """How a linear model is learned: one step a round along the gradient of all of a client's examples, at length 1.

    Noise is allocated by what a round counts for, everyone takes part unless they are many, and a client weighs classes
    by its own labels' shares.

    Of two classes many clients may have one alone. Such a client soon has nothing to say; a gradient of length 1 would
    say it as loudly as ever, and whose class is more frequent would win. So gradients are shortened to a bound instead.
    """
    two = facts.classes == 2
    local: dict[str, Any] = {"learning_rate": 1.0, "shuffle": False}
    if facts.classes is not None:
        local["label_shares"] = SHARES_OF_TWO if two else SHARES
    rounds = 15 if facts.signal < 150 else 30
    server: dict[str, Any] = {"learning_rate": 6.0 if facts.signal < WEAK else 12.0}
    if facts.signal >= CLEAR:
        server = {"kind": "momentum", "learning_rate": 8.0 if facts.signal < 1000 else 15.0}
    privacy: dict[str, Any] = {"rounds": rounds, **_who(facts)}
    if two:
        privacy["clip"] = {"kind": "fixed", "clip_norm": BOUND_OF_TWO}
        server["learning_rate"] /= BOUND_OF_TWO
    return {"local": local, "server": {**server, "decay": "linear", "average": "tail"}, "privacy": privacy}


def clipped(facts: Outline) -> Tables:
    """How a linear model of rows is learned: one step a round along the gradient of all of a client's rows, clipped."""
    bounds = BOUNDS_OF_TEXTS if facts.wordy else BOUNDS_OF_ROWS
    rounds = 15
    server: dict[str, Any] = {"learning_rate": 60.0}
    if facts.signal >= 150:
        rounds = 30 if facts.signal < CLEAR else 60
        server = {"kind": "momentum", "learning_rate": 13.0 if facts.signal < CLEAR else 33.0}
    return {
        "local": {"learning_rate": 1.0, "shuffle": False, "label_shares": SHARES_OF_FEW},
        "server": {**server, "decay": "linear", "average": "tail"},
        "privacy": {
            "rounds": rounds,
            "clip": {"kind": "fixed", "clip_norm": bounds[facts.signal >= HEARD]},
            **_who(facts),
        },
    }


def numbers(facts: Outline) -> Tables:
    """How a linear model of labels in a stated range is learned: one step a round along the gradient of the squared
    error of labels scaled to -1 .. 1, clipped.
    """
    low, high = facts.label_range or (-1.0, 1.0)
    heard = facts.signal >= 150
    return {
        "local": {"learning_rate": 4 / (high - low) ** 2, "shuffle": False},
        "server": {"kind": "momentum" if heard else "sgd", "learning_rate": 8.0, "decay": "linear", "average": "tail"},
        "privacy": {
            "rounds": 60,
            "clip": {"kind": "fixed", "clip_norm": 0.05 if heard else 0.02},
            **_who(facts),
        },
    }


def network(facts: Outline) -> Tables:
    """How a network is trained: two passes in ten batches at home, long steps of the server."""
    rounds = 12 if facts.signal < 1000 else 30
    local: dict[str, Any] = {"learning_rate": 0.1, "batches": 10, "epochs": 2}
    if facts.classes is not None:
        local["label_shares"] = 0.1
    return {
        "local": local,
        "server": {"learning_rate": 4.0, "decay": "linear", "average": "tail"},
        "privacy": {"rounds": rounds, **_who(facts)},
    }


def config_of(settings: Mapping[str, Any], *, given: Given = NOTHING) -> Config | SiloConfig:
    """The config that tables of TOML spell, completed by the recipe that they name, if any."""
    stated = dict(settings)
    name = stated.pop("recipe", None)
    return settings_of(stated if name is None else with_recipe(stated, str(name), given=given))


def with_recipe(settings: Mapping[str, Any], name: str, *, given: Given = NOTHING) -> Tables:
    """Settings, as the tables of a TOML file, completed by the recipe of this name.

    Edge cases: an unknown recipe, settings that cannot be used, and labels that are numbers, whose scale no recipe
    knows, without a server.learning_rate: `ConfigError`.
    """
    recipe, config = named(name), settings_of(settings)
    if not isinstance(config, Config):
        remedy = 'recipes are for whole clients: leave it out, or leave out privacy.unit = "record"'
        raise ConfigError(field="recipe", value=name, remedy=remedy)
    with section("privacy"):
        budget = Budget(epsilon=config.privacy.epsilon, delta=config.privacy.delta)
    data = federated_data(config, given)
    own_model = not isinstance(config.model, LinearSection)
    facts = Outline.of(data, budget, own_model=own_model, loss=config.local.loss)
    if own_model:
        with section("model"):
            model = model_of(config, data.examples, loss_of(config.local.loss, data.examples, given), given)
        facts = replace(facts, biased=model.layout.names[-1].endswith("bias"))
    ranged = facts.label_range is not None and recipe.name == "tables" and not own_model
    if facts.classes is None and not ranged and "learning_rate" not in settings.get("server", {}):
        remedy = (
            "labels are numbers, of a scale that no recipe knows: state data.label_range and take tables, or state "
            'server.learning_rate, too; if they are yes and no, local.loss = "logistic"'
        )
        raise ConfigError(field="recipe", value=name, remedy=remedy)
    return completed(settings, recipe, facts)


def _who(facts: Outline) -> dict[str, Any]:
    """Everyone, or a share of many."""
    if facts.clients < MANY:
        return {"sampling": "everyone"}
    return {"sampling": "poisson", "cohort": float(math.ceil(facts.clients / 10))}


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
        _check_fits(recipe.name, facts, features="name" in settings.get("features", {}))
    advised = recipe.settings(facts)
    _ask_label_distribution(advised, settings, facts)
    for name, key in (("features", "name"), ("model", "kind"), ("model", "module")):
        if key in settings.get(name, {}):
            advised.pop(name, None)
    privacy = settings.get("privacy", {})
    clash = {"noise": ("sampling", "cohort"), "sampling": ("cohort",)}
    if "clip" in privacy and "clip" in advised["privacy"]:  # the rate was that of the recipe's own bound
        advised["server"]["learning_rate"] *= advised["privacy"]["clip"]["clip_norm"]
    if {"batch_size", "batches"} & settings.get("local", {}).keys():  # one of the two
        advised["local"].pop("batches", None)
    for stated, without in clash.items():
        for name in without if stated in privacy else ():
            advised["privacy"].pop(name, None)
    return {name: {**advised.get(name, {}), **settings.get(name, {})} for name in {**advised, **settings}}


def _check_fits(name: str, facts: Outline, *, features: bool) -> None:
    """Refuse what no linear model of the recipe learns from, before anybody is asked; `features` says whether settings
    have features of their own.
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
