"""What each silo spent and reports of the model, and the evaluation on the clients' own examples."""

from collections.abc import Mapping, Sequence
from typing import Any

from incrowd.report import numbers
from incrowd.report.figure import plain_table
from incrowd.report.numbers import UNKNOWN
from incrowd.report.plain import Shown
from incrowd.report.svg import NOTHING, Markup, joined, tag

_TOP = 100
_FEW = 24
_CLASSES = 30


def silos(shown: Sequence[Shown]) -> Markup:
    """What each silo spent of its budget, the largest first, and how good the model is on its records."""
    runs = [one for one in shown if one.silos]
    return joined((tag("h3", one.name) if len(runs) > 1 else NOTHING) + _silos_of(one) for one in runs)


def evaluation(shown: Sequence[Shown]) -> Markup:
    """What was measured on the clients' own examples, noised and paid for."""
    return joined(
        tag("div", tag("h3", one.name) if len(shown) > 1 else NOTHING, _evaluated(found), class_="content")
        for one in shown
        for found in one.evaluations
    )


def _silos_of(one: Shown) -> Markup:
    order = sorted(one.silos, key=lambda silo: -silo["epsilon"])
    rows = [
        [
            silo["silo"],
            numbers.epsilon(silo["epsilon"]),
            numbers.epsilon(silo["budget"]),
            "yes" if silo["stopped"] else "no",
            _accuracy(silo["report"]),
        ]
        for silo in order[:_TOP]
    ]
    about = (
        f"{numbers.count(len(one.silos))} silos. Each has a budget of its own and a ledger of its own; one whose "
        "budget is spent sends nothing more. Accuracy is on the silo's own records, from a table with noise, ± two "
        "standard deviations of that noise."
    )
    headings = ("Silo", "Epsilon", "Budget", "Stopped", "Accuracy")
    table = plain_table(headings, rows, name="What each silo spent", left_out=max(len(order) - _TOP, 0))
    return tag("p", about) + table + _recalls([silo for silo in order if silo["report"] is not None][:_FEW])


def _accuracy(report: Mapping[str, Any] | None) -> str:
    if report is None:
        return UNKNOWN
    std = report["accuracy_std"]
    return numbers.percent(report["accuracy"]) + ("" if std is None else f" ± {numbers.percent(2 * std)}")


def _recalls(silos: Sequence[Mapping[str, Any]]) -> Markup:
    """For which classes the model is good on each silo's records."""
    classes = max((len(silo["report"]["recall"]) for silo in silos), default=0)
    if not 1 < classes <= _CLASSES:
        return NOTHING
    rows = [[silo["silo"], *(numbers.percent(one, 0) for one in silo["report"]["recall"])] for silo in silos]
    table = plain_table(["Recall of class", *map(str, range(classes))], rows, name="Recall of each class")
    return tag("details", tag("summary", "Recall of each class"), table)


def _evaluated(found: Mapping[str, Any]) -> Markup:
    rows = []
    for key, spelt in (("accuracy", numbers.percent), ("loss", numbers.number)):
        if found.get(key) is not None:
            noise = f"± {spelt(found.get(f'{key}_std'))} (one standard deviation of the noise)"
            rows.append([key.capitalize(), spelt(found[key]), noise])
    if found.get("balanced_accuracy") is not None:
        rows.append(["Balanced accuracy", numbers.percent(found["balanced_accuracy"]), ""])
    by_class = list(found.get("by_class") or ())[:_CLASSES]
    rows += [[f"Recall of class {one.get('class')}", numbers.percent(one.get("recall")), ""] for one in by_class]
    cost, total = numbers.epsilon(found.get("epsilon")), numbers.epsilon(found.get("epsilon_of_all"))
    note = (
        f"The mean over all {numbers.count(found.get('clients'))} clients, each of which counts the same; one that "
        "does not answer counts as one half. They are the clients that training asks."
    )
    return joined(
        [
            plain_table(("Measured", "Value", "Noise"), rows, name="On the clients' own examples"),
            tag("p", f"This cost epsilon {cost}; all together epsilon {total}."),
            tag("p", note, class_="quiet"),
        ]
    )
