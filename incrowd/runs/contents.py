"""Every file that a run or a search may write: what it holds, and how much of it may be handed on.

The list is what docs/runs.md shows and what `incrowd.runs.export` goes by; a file that is not on it is never handed on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

HandedOn = Literal["as it is", "in part", "no"]


@dataclass(frozen=True)
class Content:
    """Files whose path in the folder fits a pattern (`*` stands for any characters)."""

    pattern: str
    holds: str
    handed_on: HandedOn


OF_A_RUN = (
    Content("model.safetensors", "the released model, under torch's names and in its shapes", "as it is"),
    Content("card.md", "the model's card: data, promise, how good it is, columns, settings", "as it is"),
    Content("statement.txt", "what is promised, to whom, and what is not", "as it is"),
    Content("statement.json", "the same for programs", "as it is"),
    Content("evaluation.json", "how good it is on the clients' own examples, noised and paid for", "as it is"),
    Content("curve.png", "accuracy and epsilon over the rounds", "as it is"),
    Content("summary.json", "the result", "in part"),
    Content("run.sqlite", "the settings, and for each round its epsilon, accuracy, clip and noise", "in part"),
    Content("ledger.json", "which ledger the run is charged to, under which label, for which data", "no"),
    Content("ledger.sqlite", "what was spent, written before it was released", "in part"),
    Content("ledger.sqlite.witness", "how far the ledger had come", "no"),
    Content("checkpoints/round-*.safetensors", "the state after so many rounds; the last two are kept", "no"),
    Content("asked.bin", "digests of what parties were asked over a network, which every one of them is told", "no"),
    Content("start.safetensors", "the state that a module of one's own began with", "no"),
    Content("private/round-*.safetensors", "what correlated noise remembers; gone after the last round", "no"),
    Content("rounds.csv", "the rounds, by the tracker `csv`", "no"),
    Content("rounds.jsonl", "the rounds, by the tracker `jsonl`", "no"),
    Content("tensorboard/*", "the rounds, by the tracker `tensorboard`", "no"),
    Content("paused", "nothing: while it is there, no round of a served run begins", "no"),
    Content("run.lock", "nothing: keeps two processes apart", "no"),
    Content("silos/*/ledger.sqlite", "what a silo spent", "in part"),
    Content("silos/*/ledger.sqlite.witness", "how far that ledger had come", "no"),
    Content("silos/*/report.json", "a silo's noised table of what the model calls its records", "no"),
    Content("silos/*/sent/round-*.safetensors", "a silo's last answers, to be given again", "no"),
)

OF_A_SEARCH = (
    Content("result.json", "the result", "in part"),
    Content("table.csv", "settings and scores", "in part"),
    Content("search.json", "what is compared", "no"),
    Content("search.lock", "nothing: keeps two processes apart", "no"),
    Content("ledger.sqlite", "what the search has spent, written before each run (or the selection)", "in part"),
    Content("ledger.sqlite.witness", "how far the ledger had come", "no"),
    Content("runs/*/model.safetensors", "the model of each run", "as it is"),
    Content("runs/*", "a run each", "no"),
    Content("private/*", "the attempts of a private selection; gone before there is a result", "no"),
    Content("best/model.safetensors", "the model that a private selection chose", "as it is"),
    Content("best/*", "its statement and its summary", "no"),
)


def content_of(path: str, contents: tuple[Content, ...]) -> Content | None:
    """What a file is: the first that fits; None where nobody knows it."""
    return next((content for content in contents if fnmatchcase(path, content.pattern)), None)


RESULT_KEYS = (
    "accuracy", "loss", "metrics", "data", "clients", "test_set", "rounds", "rounds_lost", "communications", "epsilon",
    "delta", "budget", "epsilon_by_silo", "report_by_silo", "stopped", "stopped_early", "noise_multiplier", "simulated",
    "verdict",
)  # fmt: skip
"""What of a run's summary may be handed on."""

SEARCH_KEYS = (
    "epsilon_of_search", "delta", "select", "holds", "prices", "settings_compared", "validation_set", "statement",
    "expected_runs", "chance_that_a_setting_is_tried",
)  # fmt: skip
"""What of a search's result may be handed on, beside its rows."""

ROW_KEYS = ("settings", "accuracy", "loss", "epsilon", "rounds", "test_accuracy", "test_loss")

KEPT_BACK = {
    "data.enrolled": "a path of the operator's",
    "data.file": "a path of the operator's",
    "data.folder": "a path of the operator's",
    "data.arguments": "may hold anything",
    "data.seed": "says which client has which examples",
    "data.test_file": "a path of the operator's",
    "features.arguments": "may hold anything",
    "features.cache": "a path of the operator's",
    "features.folder": "a path of the operator's",
    "features.weights": "a path of the operator's",
    "model.arguments": "may hold anything",
    "model.folder": "a path of the operator's",
    "privacy.ledger": "a path of the operator's",
    "privacy.witness": "a path of the operator's",
    "run.device": "the operator's machine",
    "run.keep": "of no meaning elsewhere",
    "run.seed": "who knows it can remove the noise",
    "run.threads": "the operator's machine",
    "run.trackers": "of no meaning elsewhere",
}
"""The settings that are not handed on, and why."""

SHOWN = {
    "data": ("alpha", "blanks", "classes", "client", "clients", "columns", "decimal", "delimiter", "encoding",
             "features", "federation", "function", "holdout_clients", "identity", "label", "label_range",
             "missing_texts", "name", "names", "offset", "partition", "per_client", "public", "scale", "shape", "sigma",
             "test_clients", "thousands", "type", "validation"),
    "features": ("bins", "buckets", "centred", "constant", "dimensions", "longest", "module", "name",
                 "octave", "padding", "raw", "reads", "stride"),
    "local": ("algorithm", "batch_size", "batches", "epochs", "label_distribution", "label_shares",
              "learning_rate", "loss", "momentum", "optimizer", "physical_batch", "proximal", "shuffle",
              "weight_decay"),
    "model": ("bias", "hidden", "init_scale", "kind", "label_range", "module"),
    "privacy": ("accountant", "clients", "clip", "clip_norm", "cohort", "delta",
                "epsilon", "groups", "grow_from", "hardlimit", "noise", "noise_multiplier",
                "noise_by", "records", "released_before", "report_std", "room", "rounds", "sampling", "unit", "weigh"),
    "run": ("checkpoint_every", "chunk", "compile", "diagnose", "plot", "randomness", "report_every", "unavailable"),
    "server": ("adaptivity", "average", "decay", "kind", "learning_rate", "momentum"),
    "stop": ("least", "patience", "target", "watch"),
}  # fmt: skip
"""The settings that are handed on, section by section."""


def shown_settings(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What of a run's settings may be handed on."""
    return {
        section: {name: config[section][name] for name in names if name in config[section]}
        for section, names in SHOWN.items()
        if section in config
    }


def part(content: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Those of the keys that are there."""
    return {key: content[key] for key in keys if key in content}
