"""What each silo spent and reports of the model, and the evaluation on the clients' own examples."""

from collections.abc import Mapping, Sequence
from typing import Any

from incrowd.report import numbers
from incrowd.report.figure import FigureTable, figure, plain_table
from incrowd.report.pictures import NamedBar, bars
from incrowd.report.plain import Shown
from incrowd.report.svg import NOTHING, Markup, joined, tag

_BARS = 24
_TOP = 100
_CLASSES = 30
_SPENT = "What each silo spent"
_REPORTS = "What silos say of the model"


def silos(shown: Sequence[Shown]) -> Markup:
    """What each silo spent of its budget, the largest first, and what silos report of the model."""
    runs = [one for one in shown if one.silos]
    return joined(
        (tag("h3", one.name) if len(runs) > 1 else NOTHING) + _silos_of(one, place=place)
        for place, one in enumerate(runs)
    )


def evaluation(shown: Sequence[Shown]) -> Markup:
    """What was measured on the clients' own examples, noised and paid for."""
    return joined(
        tag("div", tag("h3", one.name) if len(shown) > 1 else NOTHING, _evaluated(found), class_="content")
        for one in shown
        for found in one.evaluations
    )


def _silos_of(one: Shown, *, place: int) -> Markup:
    most = max(silo["budget"] for silo in one.silos)
    order = sorted(one.silos, key=lambda silo: -silo["epsilon"])
    given = [
        NamedBar(
            name=silo["silo"],
            value=silo["epsilon"],
            said=f"ε {numbers.epsilon(silo['epsilon'])}",
            style=1 if silo["stopped"] else 0,
        )
        for silo in order[:_BARS]
    ]
    rows = [
        [
            silo["silo"],
            numbers.epsilon(silo["epsilon"]),
            numbers.epsilon(silo["budget"]),
            "yes" if silo["stopped"] else "no",
        ]
        for silo in order[:_TOP]
    ]
    about = (
        f"{numbers.count(len(one.silos))} silos. Each has a budget of its own and a ledger of its own; one whose "
        "budget is spent sends nothing more."
    )
    spent = figure(
        key=f"silos-{place}",
        title=_SPENT,
        about=about,
        chart=bars(given, name=_SPENT, line=(most, f"budget {numbers.epsilon(most)}")),
        table=FigureTable(
            headings=("Silo", "Epsilon", "Budget", "Stopped"), rows=rows, left_out=max(len(order) - _TOP, 0)
        ),
    )
    reported = [silo for silo in one.silos if silo["report"] is not None]
    return tag("div", spent, _reports(reported, place=place) if reported else NOTHING, class_="grid")


def _reports(given: Sequence[Mapping[str, Any]], *, place: int) -> Markup:
    """How good the model is on each silo's records, the worst first, and for which classes."""
    few = sorted(given, key=lambda silo: silo["report"]["accuracy"] or 0.0)[:_BARS]
    each = [
        NamedBar(
            name=silo["silo"],
            value=silo["report"]["accuracy"] or 0.0,
            said=numbers.percent(silo["report"]["accuracy"]),
            style=2,
            interval=_interval(silo["report"]["accuracy"], silo["report"]["accuracy_std"]),
        )
        for silo in few
    ]
    classes = max(len(silo["report"]["recall"]) for silo in few)
    table = None
    if 1 < classes <= _CLASSES:
        rows = [[silo["silo"], *(numbers.percent(one, 0) for one in silo["report"]["recall"])] for silo in few]
        table = FigureTable(headings=["Recall of class", *map(str, range(classes))], rows=rows)
    about = (
        "Accuracy on each silo's own records, from a table with noise; the whisker is two standard deviations of that "
        "noise."
    )
    chart = bars(each, name=_REPORTS, most=1.0)
    return figure(key=f"reports-{place}", title=_REPORTS, about=about, chart=chart, table=table)


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
            *(tag("p", one, class_="warning") for one in found.get("doubtful") or ()),
            plain_table(("Measured", "Value", "Noise"), rows, name="On the clients' own examples"),
            tag("p", f"This cost epsilon {cost}; all together epsilon {total}."),
            tag("p", note, class_="quiet"),
        ]
    )


def _interval(value: float | None, std: float | None) -> tuple[float, float] | None:
    return None if value is None or std is None else (value - 2 * std, value + 2 * std)
