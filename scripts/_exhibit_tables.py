"""The tables of docs/gallery.md, made of what the commands print as JSON, beside what the papers state.

No number is typed in here: the papers' own come with the reports.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from harness.results import markdown

Report = Mapping[str, Any]


def rows(several: Iterable[Mapping[str, object]], *left: str) -> list[str]:
    """A table whose named columns are texts."""
    return markdown(list(several), left=left)


def findings(report: Report, *, but: str = "k = 0") -> list[str]:
    """What the paper states, what was measured about it, and whether that agrees."""
    told = [one for one in report["findings"] if not one["statement"].startswith(but)]
    lines = ({"stated": f["statement"], "measured": f["measured"], "agrees": _yes(f["agrees"])} for f in told)
    return rows(lines, "stated", "measured", "agrees")


def seeds(count: int, more: str = "") -> list[str]:
    """How often everything was repeated."""
    return ["", f"{count} seed{'' if count == 1 else 's'}{more}."]


def table1(network: Report, best: Report) -> list[str]:
    """Table 1: a row for each recipe and number of clients."""
    lines = [
        {
            "clients": f"{one['clients']:,}",
            "recipe": f"`{one['recipe']}`",
            "accuracy": spread(one["accuracy"], one["accuracy_sd"]),
            "the paper's": f"{one['paper_accuracy']:.2f}",
            "rounds": one["rounds"],
            "the paper's rounds": one["paper_rounds"],
            "trainings": f"{one['communications']:,.0f}",
            "the paper's trainings": f"{one['paper_communications']:,}",
            "epsilon": f"{one['budget_epsilon']:g}",
            "as executed": f"{one['epsilon_honest']:.3g}",
        }
        for one in (*network["rows"], *best["rows"])
    ]
    return rows(lines, "recipe") + seeds(best["rows"][0]["seeds"], " each")


def geyer_figure1(report: Report, best: Report) -> list[str]:
    """Where the curves end."""
    lines = [
        {
            "curve": f"{one['clients']:,} clients" + ("" if one["epsilon"] else ", no privacy"),
            "rounds": one["rounds"][-1],
            "accuracy": f"{one['accuracy'][-1]:.4f}",
            "the paper's rounds": one["paper_rounds"],
            "the paper's accuracy": f"{one['paper_accuracy']:.2f}",
            "epsilon": f"{one['epsilon']:g}" if one["epsilon"] else "none",
            "as executed": f"{one['epsilon_honest']:.3g}" if one["epsilon"] else "none",
        }
        for one in report["curves"]
    ]
    found = best["rows"][0]
    lines.append(
        {
            "curve": f"{found['clients']:,} clients, the recipe `best`",
            "rounds": found["rounds"],
            "accuracy": spread(found["accuracy"], found["accuracy_sd"]),
            "the paper's rounds": "",
            "the paper's accuracy": "",
            "epsilon": f"{found['budget_epsilon']:g}",
            "as executed": f"{found['epsilon_honest']:.3g}",
        }
    )
    return rows(lines, "curve") + seeds(report["curves"][0]["seeds"], f"; the last row: {found['seeds']} seeds")


def geyer_figure2(report: Report) -> list[str]:
    """A few rounds."""
    variances, scales = report["between_client_variance"], report["update_scale"]
    places = [place for place, number in enumerate(report["rounds"]) if number in {1, 5, 25, report["rounds"][-1]}]
    lines = (
        {
            "rounds": report["rounds"][place],
            "accuracy": f"{report['accuracy'][place]:.3f}",
            "V_c": f"{variances[place]:.1e}",
            "U_s": f"{scales[place]:.1e}",
            "V_c / U_s": f"{variances[place] / scales[place]:.0f}",
        }
        for place in places
    )
    return rows(lines) + seeds(report["seeds"])


def ddml_figure1(report: Report) -> list[str]:
    """Theorem 1 and what happens without discarding."""
    return [*findings(report), "", f"{report['pools']} independent pools of 50 weights."]


def ddml_figure2(report: Report, best: Report) -> list[str]:
    """What is stated of the curves, and what is learnt at the same epsilon."""
    return [*findings(report), "", *better(best["rows"]), *seeds(_count(report), " each")]


def ddml_figure3(report: Report, best: Report) -> list[str]:
    """What is stated of the strategies, and what the others among them reach with longer steps."""
    first = best["rows"][0]
    others = [one for one in best["rows"] if one["label"] == first["label"] or one["strategy"] != first["strategy"]]
    return [*findings(report), "", *better(others), *seeds(_count(report), " each")]


def ddml_figure4(report: Report, faster: Report) -> list[str]:
    """Where the curves end, and the statements about the learning rate."""
    ends: dict[tuple[str, str], dict[str, str]] = {}
    for one in (report, faster):
        for panel in one["panels"]:
            column = f"k = {panel['series'][-1]['instances']}"
            for curve in panel["series"] if one is report else panel["series"][:2]:
                name = "one model" if curve["instances"] == 1 else curve["label"]
                place = f"{curve['learning_rate']:g}", name
                ends.setdefault(place, {})[column] = f"{curve['final_accuracy']:.3f}"
    lines = ({"learning rate": rate, "accuracy with": name} | end for (rate, name), end in ends.items())
    return [*rows(lines, "accuracy with"), "", *findings(report, but="k = "), *seeds(_count(report), " each")]


def ddml_figure5(report: Report, better: Report) -> list[str]:
    """Weights and predictions beside the truth's and the paper's."""
    ours = (("the paper's rate", report), ("a rate from 0.2 to 0", better))
    lines = [
        {
            "": name,
            "updates": f"{one['updates']:,}",
            "error (root mean square)": f"{one['root_mean_square_error'][-1]:.3f}",
            "largest error": f"{one['largest_error'][-1]:.3f}",
            **{measure: f"{one[measure]:.3f}" for measure in ("accuracy", "precision", "recall")},
        }
        for name, one in ours
    ]
    for name in ("truth", "paper"):
        measures = {measure: f"{report[name][measure]:.3f}" for measure in ("accuracy", "precision", "recall")}
        updates = f"{report['paper']['updates']:,}" if name == "paper" else ""
        label = {"truth": "*the true weights*", "paper": "*the paper*"}[name]
        lines.append({"": label, "updates": updates, "error (root mean square)": "", "largest error": "", **measures})
    return rows(lines, "") + seeds(1)


def phishing(report: Report, best: Report) -> list[str]:
    """The paper's measures."""
    measures = {"roc_auc": "ROC AUC", "pr_auc": "PR AUC", "accuracy": "accuracy", "precision": "precision"}
    measures |= {"recall": "recall", "f1": "F1"}
    named = [
        ("*the paper, on data of its own*", report["paper"]),
        ("the paper's setting", report["table"][0]),
        ("**best**", next(one for one in best["table"] if one["label"] == "best")),
        ("best, without noise", best["without_noise"]),
        ("*not private, fitted to all*", report["not_private"]),
    ]
    lines = ({"": name} | {label: f"{one[key]:.4f}" for key, label in measures.items()} for name, one in named)
    return rows(lines, "") + seeds(report["table"][0]["seeds"], " each")


def ranking(report: Report, more: Report) -> list[str]:
    """Places, and load beside what the paper tells of it."""
    lines = [
        {
            "": f"{one['label']}{updates}",
            "mean place": f"{one['mean_place']:,.0f}",
            "median": f"{one['median_place']:,.0f}",
            "in the first 100": f"{one['in_top_100']:.0%}",
            "ROC AUC": f"{one['roc_auc']:.3f}",
        }
        for updates, part in (("", report["table"]), (f", {more['updates']:,} updates", more["table"][:1]))
        for one in part
    ]
    return rows(lines, "") + seeds(1)


def silos(report: Report, best: Report) -> list[str]:
    """Accuracies, and the article's schedule priced."""
    lines = [
        {
            "network": f"`{one['network']}`",
            "silos": one["silos"],
            "epsilon": f"{one['epsilon']:g}",
            "spent": f"{one['epsilon_by_round'][-1]:.3f}",
            "accuracy": f"{one['accuracy']:.4f}",
            "weights": f"{one['weights']:,}",
        }
        for one in (*report["runs"], *best["runs"])
    ]
    schedule = [
        {
            "the article's schedule": f"{one['silos']} silos",
            "budget": f"{one['epsilon']:g}",
            "spent after the last round": f"{one['epsilon_by_round'][-1]:.3g}",
            "first round over budget": one["first_round_over_budget"] or "none",
        }
        for one in report["published"]
    ]
    return [*rows(lines, "network"), "", *rows(schedule, "the article's schedule"), *seeds(report["runs"][0]["seeds"])]


def better(several: Iterable[Mapping[str, Any]]) -> list[str]:
    """From the paper's setting to the best one: a row for each, a column for each epsilon."""
    ends: dict[tuple[str, ...], dict[str, str]] = {}
    units = {"feature": "each weight", "model": "the model"}
    for one in several:
        setting = one["label"], units[one["unit"]], f"{one['clip']:g}", f"{one['learning_rate']:g}"
        ends.setdefault(setting, {})[f"epsilon = log {math.exp(one['epsilon']):.3g}"] = f"{one['final_accuracy']:.3f}"
    names = ("accuracy, k = 10", "epsilon is for", "clip", "learning rate")
    lines = (dict(zip(names, setting, strict=True)) | end for setting, end in ends.items())
    return rows(lines, "accuracy, k = 10", "epsilon is for")


def spread(mean: float, deviation: float | None) -> str:
    """A mean, and how far the seeds lie apart, if there are several."""
    return f"{mean:.4f}" if deviation is None else f"{mean:.4f} ± {deviation:.4f}"


def _count(report: Report) -> int:
    return int(report["panels"][0]["series"][0]["seeds"])


def _yes(agrees: bool) -> str:  # noqa: FBT001 - what a finding says
    return "yes" if agrees else "**no**"
