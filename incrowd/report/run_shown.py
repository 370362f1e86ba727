"""What may be shown of a run, over or not, whichever unit it protects and whoever trained."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from incrowd.errors import ConfigError, DataError
from incrowd.report import ledger_shown
from incrowd.report.plain import Shown, ShownFacts
from incrowd.report.reading import json_in, rows_of, settings_of
from incrowd.runs.folder import (
    DATABASE,
    EVALUATION,
    LEDGER,
    PAYER,
    PRIVATE,
    RESULT_KEYS,
    SUMMARY,
    part,
    shown_settings,
)
from incrowd.runs.ledgers import own_place

AUDIT = "audit.json"

ROUND_KEYS = ("round", "epsilon", "clip_norm", "noise_std", "accuracy", "loss", "lost")
"""What of a round may be shown, as it may be handed on."""

DIAGNOSTIC_KEYS = ("between_client_variance", "update_scale", "norms", "fraction_clipped", "noise_to_signal")
"""What reads raw contributions: of simulations of public data alone."""

EVALUATION_KEYS = (
    "accuracy", "accuracy_std", "loss", "loss_std", "balanced_accuracy", "by_class", "measured", "clients", "epsilon",
    "delta", "noise_multiplier", "noise_by", "simulated", "epsilon_of_all",
)  # fmt: skip

AUDIT_KEYS = ("epsilon_claimed", "epsilon_lower_bound", "confidence", "holds", "simulated", "findings", "checks")

FINDING_KEYS = (
    "attack", "unit", "claimed", "delta", "lower_bound", "confidence", "auc", "true_positives", "allowed", "trials",
    "note", "holds",
)  # fmt: skip

CHECK_KEYS = ("name", "measured", "stated", "holds", "note")

PROMISE_KEYS = (
    "unit", "relation", "trust", "epsilon", "delta", "accountant", "sampler", "assumed", "not_covered", "caveats",
    "text",
)  # fmt: skip

REPORT_KEYS = (
    "records", "accuracy", "accuracy_std", "balanced_accuracy", "macro_f1", "recall", "f1", "noise_std", "table",
)  # fmt: skip


def run_in(folder: Path, *, live: bool = False) -> Shown:
    """What may be shown of the run in a folder; the ledgers of a `live` one are priced when it is over."""
    settings, payer = settings_of(folder / DATABASE), json_in(folder / PAYER)
    if "config" not in settings:
        raise DataError(f"{folder} was cut off while it was made, and nothing was spent: name another folder")
    if payer.get("search") is not None:
        remedy = "it is an attempt of a private search, which keeps all but its best back: name the search's folder"
        raise ConfigError(field="run", value=str(folder), remedy=remedy)
    config, over = settings["config"], (folder / SUMMARY).is_file() and not (folder / PRIVATE).exists()
    result = part(json_in(folder / SUMMARY), (*RESULT_KEYS, "statement")) if over else {}
    simulated, public = config["run"].get("seed") is not None, bool(config["data"].get("public", False))
    rounds = [_round(row, diagnostics=simulated and public) for row in rows_of(folder / DATABASE)]
    promises, wanted = _promises(result.pop("statement", {})), config["privacy"]
    unit = wanted.get("unit", "client")
    silos = unit == "record" and wanted.get("noise_by", "party") == "party"
    return Shown(
        kind="silos" if silos else "clients",
        name=folder.name,
        data=ledger_shown.name_of(str(result.get("data") or _data(config["data"]))),
        unit=unit,
        over=over,
        simulated=simulated,
        public=public,
        epsilon=result.get("epsilon", max((row["epsilon"] for row in rounds), default=0.0)),
        delta=result.get("delta", config["privacy"]["delta"]),
        budget=_budget(config["privacy"]["epsilon"]),
        clients=settings.get("clients"),
        planned=settings.get("rounds"),
        baseline=baseline(result) if {"metrics", "accuracy", "loss"} <= result.keys() else None,
        version=settings.get("version"),
        result=result,
        settings=shown_settings(config),
        promises=promises,
        rounds=rounds,
        schedule=[part(step, ("rounds", "cohort", "noise_multiplier")) for step in settings.get("schedule") or ()],
        silos=list(_silos(folder, config["privacy"], result)) if silos else (),
        ledgers=list(_ledgers(folder, payer, promises, priced=over or not live)) if payer else (),
        evaluations=[part(one, EVALUATION_KEYS) for one in json_in(folder / EVALUATION).get("evaluations", ())],
        audit=_audit(folder),
    )


def _round(row: Mapping[str, Any], *, diagnostics: bool) -> ShownFacts:
    shown = part(row, ROUND_KEYS) | {"lost": bool(row["lost"])}
    seen = (row.get("simulation") or {}).get("diagnostics") if diagnostics else None
    return shown | {"simulation": None if seen is None else part(seen, DIAGNOSTIC_KEYS)}


def _promises(statement: Mapping[str, Any]) -> dict[str, ShownFacts]:
    """What each may claim, by its name: a run has one statement, or one a party."""
    if "epsilon" in statement:
        return {"": part(statement, PROMISE_KEYS)}
    return {party: part(one, PROMISE_KEYS) for party, one in statement.items() if isinstance(one, Mapping)}


def _silos(folder: Path, wanted: Mapping[str, Any], result: Mapping[str, Any]) -> Iterator[ShownFacts]:
    """How each silo stands: what it spent, whether that is all, and its noised report."""
    spent, stopped = dict(result.get("epsilon_by_silo") or {}), set(result.get("stopped") or ())
    if not result:
        standing: Sequence[ShownFacts] = next(
            (row["silos"] for row in reversed(rows_of(folder / DATABASE)) if row.get("silos")), []
        )
        spent = {one["silo"]: one["epsilon"] for one in standing}
        stopped = {one["silo"] for one in standing if one.get("absence") == "budget spent"}
    budgets = wanted["epsilon"] if isinstance(wanted["epsilon"], list) else [wanted["epsilon"]] * len(spent)
    reports = result.get("report_by_silo") or {}
    for (name, epsilon), budget in zip(spent.items(), budgets, strict=False):
        report = reports.get(name)
        yield {
            "silo": name,
            "epsilon": epsilon,
            "budget": budget,
            "stopped": name in stopped,
            "report": None if report is None else part(report, REPORT_KEYS),
        }


def _ledgers(
    folder: Path, payer: Mapping[str, Any], promises: Mapping[str, ShownFacts], *, priced: bool
) -> Iterator[ShownFacts]:
    if "silos" not in payer:
        yield ledger_shown.of_run(payer, own=folder / LEDGER, party="", priced=priced)
        return
    names = list(promises) or sorted(_folders(folder / "silos"))
    for name, ledger in zip(names, payer["silos"], strict=False):
        yield ledger_shown.of_run(ledger, own=own_place(folder, name), party=name, priced=priced)


def _folders(place: Path) -> Sequence[str]:
    return [each.name for each in place.iterdir() if each.is_dir()] if place.is_dir() else []


def _audit(folder: Path) -> ShownFacts | None:
    found = json_in(folder / AUDIT)
    if not found:
        return None
    shown = part(found, AUDIT_KEYS)
    shown["findings"] = [part(one, FINDING_KEYS) for one in found.get("findings", ())]
    shown["checks"] = [part(one, CHECK_KEYS) for one in found.get("checks", ())]
    return shown


def _data(data: Mapping[str, Any]) -> str:
    return str(data.get("identity") or data.get("name"))


def _budget(epsilon: Any) -> float:
    return float(max(epsilon) if isinstance(epsilon, list) else epsilon)


def baseline(summary: Mapping[str, Any]) -> float | None:
    """The score of a constant prediction, in the measure that is drawn."""
    metrics = summary["metrics"] or {}
    found: Mapping[str, Any] = metrics.get("baseline") or {}
    if summary["accuracy"] is not None:
        accuracy = found.get("accuracy")
        return None if accuracy is None else float(accuracy)
    if found.get("mse") is None or not metrics.get("mse") or summary["loss"] is None:
        return None
    share = summary["loss"] / metrics["mse"]  # the squared loss is half of it
    return float(share * found["mse"]) if math.isclose(share, 0.5, rel_tol=1e-3) else None
