"""The table for people, and its picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.pictures import axes, dress
from harness.results import columns
from harness.seeds import Entry
from papers.geyer.ablations import ablations
from papers.geyer.measure import ROWS
from papers.geyer.table1 import Table
from papers.shared import is_mnist

SHOWN = {
    "clients": "clients",
    "recipe": "recipe",
    "epsilon": "budget_epsilon",
    "honest": "epsilon_honest",
    "delta": "delta",
    "accuracy": "accuracy",
    "sd": "accuracy_sd",
    "paper": "paper_accuracy",
    "rounds": "rounds",
    "trainings": "communications",
    "paper's": "paper_communications",
    "accountant": "accountant",
    "weights": "weights",
    "seconds": "seconds",
}
"""The columns for people, and the entries that they show; JSON has more."""


def report(table: Table, *, smallest: bool, ablate: bool, plot: Path | None) -> tuple[dict[str, Any], list[Entry]]:
    """What the command prints: one object for machines, and rows for people.

    Either the table, or the least budgets (`smallest`), or what the ingredients are worth (`ablate`).
    """
    if ablate:
        worth = ablations(table)
        return {"ablations": worth}, worth
    entries = table.smallest() if smallest else table.entries()
    if not is_mnist(table.split):  # what the paper reached there is nobody's measure here
        entries = [entry | {name: None for name in entry if name.startswith("paper_")} for entry in entries]
    if plot is not None:
        plot_table(plot, entries)
    return {"rows": entries, "plot": None if plot is None else str(plot)}, shown(entries)


def warnings(report: Mapping[str, Any]) -> list[str]:
    """What readers of these rows should know first, each once."""
    return list(dict.fromkeys(warning for entry in report.get("rows", []) for warning in entry["warnings"]))


def shown(entries: Sequence[Entry]) -> list[Entry]:
    """The columns that fit on a screen, with as many digits as mean something."""
    return columns(entries, SHOWN, digits=4)


def plot_table(path: Path, entries: Sequence[Entry]) -> None:
    """Accuracy over the number of clients: one line for each recipe and budget, and the paper's."""
    lines: dict[str, list[tuple[int, float, float]]] = {}
    private = [entry for entry in entries if entry["budget_epsilon"] is not None]
    for entry in private:
        label = f"{entry['recipe']}, epsilon {entry['budget_epsilon']:g}"
        point = entry["clients"], entry["accuracy"], entry["accuracy_sd"] or 0.0
        lines.setdefault(label, []).append(point)
    with axes(path) as (panel,):
        for label, points in lines.items():
            clients, accuracies, spreads = zip(*sorted(points), strict=True)
            panel.errorbar(clients, accuracies, yerr=spreads, marker="o", capsize=3, label=label)
        rows = sorted({entry["clients"] for entry in private})
        known = {entry["clients"] for entry in private if entry["paper_accuracy"] is not None}
        of_paper = [row for row in rows if row in known]
        if of_paper:
            panel.plot(
                of_paper,
                [ROWS[row].accuracy for row in of_paper],
                "k--",
                marker="s",
                markerfacecolor="none",
                label="the paper, epsilon 8",
            )
        panel.set_xscale("log")
        panel.set_xticks(rows, [f"{row:,}" for row in rows])
        panel.set_xticks([], minor=True)
        dress(panel, "clients", "accuracy on the test examples", loc="lower right")
