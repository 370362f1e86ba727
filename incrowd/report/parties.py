"""What each silo spent and says of the model, and what the clients' own examples said of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from incrowd.report.figure import FigureTable, figure, plain_table
from incrowd.report.pictures import NamedBar, bars, cells, strip
from incrowd.report.plain import Shown
from incrowd.report.svg import NOTHING, Markup, joined, tag, text
from incrowd.report.words import Wording

_BARS = 24
_TOP = 100
_CLASSES = 30


def silos(shown: Sequence[Shown], words: Wording) -> Markup:
    """What each silo spent of its budget; of very many, how that is spread, and a table of those who spent most."""
    runs = [one for one in shown if one.silos]
    return joined(_of_run(one, words, place=place, named=len(runs) > 1) for place, one in enumerate(runs))


def evaluation(shown: Sequence[Shown], words: Wording) -> Markup:
    """What was measured on the clients' own examples, noised and paid for."""
    parts = []
    for one in shown:
        for found in one.evaluations:
            head = tag("h3", text(one.name)) if len(shown) > 1 else NOTHING
            parts.append(tag("div", head, _evaluated(found, words), class_="content"))
    return joined(parts)


def _of_run(one: Shown, words: Wording, *, place: int, named: bool) -> Markup:
    head = tag("h3", text(one.name)) if named else NOTHING
    most = max(silo["budget"] for silo in one.silos)
    line = (most, words.plain("budget.line", budget=words.epsilon(most)))
    if len(one.silos) <= _BARS:
        given = [
            NamedBar(
                name=silo["silo"],
                value=silo["epsilon"],
                said=f"ε {words.epsilon(silo['epsilon'])}",
                style=1 if silo["stopped"] else 0,
            )
            for silo in one.silos
        ]
        chart = bars(given, name=words.plain("silos.title"), line=line)
    else:
        spent = [silo["epsilon"] for silo in one.silos]
        chart = strip(
            spent, name=words.plain("silos.title"), label=words.plain("silos.axis"), spelt=words.number, line=line
        )
    figures = [
        figure(
            words,
            key=f"silos-{place}",
            title=words.plain("silos.title"),
            about=words.plain("silos.about", count=words.count(len(one.silos))),
            chart=chart,
            table=_table(one.silos, words),
        )
    ]
    reported = [silo for silo in one.silos if silo["report"] is not None]
    if reported:
        figures += _reports(reported, words, place=place)
    return head + tag("div", *figures, class_="grid")


def _table(given: Sequence[Mapping[str, Any]], words: Wording) -> FigureTable:
    order = sorted(given, key=lambda silo: -silo["epsilon"])
    rows = [
        [
            silo["silo"],
            words.epsilon(silo["epsilon"]),
            words.epsilon(silo["budget"]),
            words.plain("yes" if silo["stopped"] else "no"),
        ]
        for silo in order[:_TOP]
    ]
    headings = [words.plain(key) for key in ("silo", "epsilon", "budget", "silos.stopped")]
    return FigureTable(headings=headings, rows=rows, left_out=max(len(given) - _TOP, 0))


def _reports(given: Sequence[Mapping[str, Any]], words: Wording, *, place: int) -> list[Markup]:
    """How good each silo says the model is on its own records, and for which classes."""
    few = sorted(given, key=lambda silo: silo["report"]["accuracy"] or 0.0)[:_BARS]
    chart = _accuracies(few, words) if len(given) <= _BARS else _spread_out(given, words)
    title, about = words.plain("reports.title"), words.plain("reports.about")
    found = [figure(words, key=f"reports-{place}", title=title, about=about, chart=chart)]
    classes = max(len(silo["report"]["recall"]) for silo in few)
    if 1 < classes <= _CLASSES:
        rows = [(silo["silo"], silo["report"]["recall"]) for silo in few]
        known = [value for _, values in rows for value in values if value is not None]
        low, high = min(known, default=0.0), max(known, default=1.0)
        spelt = [[silo["silo"], *(words.percent(one, 0) for one in silo["report"]["recall"])] for silo in few]
        headings = [words.plain("silo"), *map(str, range(classes))]
        found.append(
            figure(
                words,
                key=f"recall-{place}",
                title=words.plain("recall.title"),
                about=words.plain("recall.about", low=words.percent(low, 0), high=words.percent(high, 0)),
                chart=cells(
                    rows, name=words.plain("recall.title"), low=low, high=high, labels=list(map(str, range(classes)))
                ),
                table=FigureTable(headings=headings, rows=spelt),
            )
        )
    return found


def _accuracies(given: Sequence[Mapping[str, Any]], words: Wording) -> Markup:
    each = [
        NamedBar(
            name=silo["silo"],
            value=silo["report"]["accuracy"] or 0.0,
            said=words.percent(silo["report"]["accuracy"]),
            style=2,
            interval=_interval(silo["report"]["accuracy"], silo["report"]["accuracy_std"]),
        )
        for silo in given
    ]
    return bars(each, name=words.plain("reports.title"), most=1.0)


def _spread_out(given: Sequence[Mapping[str, Any]], words: Wording) -> Markup:
    known = [silo["report"]["accuracy"] for silo in given if silo["report"]["accuracy"] is not None]
    return strip(known, name=words.plain("reports.title"), label=words.plain("reports.axis"), spelt=words.percent)


def _evaluated(found: Mapping[str, Any], words: Wording) -> Markup:
    rows = []
    for key in ("accuracy", "loss"):
        if found.get(key) is not None:
            said = words.percent(found[key]) if key == "accuracy" else words.number(found[key])
            std = found.get(f"{key}_std")
            noise = words.percent(std) if key == "accuracy" else words.number(std)
            rows.append([words(key), text(said), words("give_or_take", std=noise)])
    if found.get("balanced_accuracy") is not None:
        rows.append([words("balanced_accuracy"), text(words.percent(found["balanced_accuracy"])), NOTHING])
    by_class = list(found.get("by_class") or ())[:_CLASSES]
    rows += [
        [words("recall_of", label=one.get("class")), text(words.percent(one.get("recall"))), NOTHING]
        for one in by_class
    ]
    cost = tag(
        "p",
        words(
            "evaluation.cost",
            epsilon=words.epsilon(found.get("epsilon")),
            all=words.epsilon(found.get("epsilon_of_all")),
        ),
    )
    doubts = joined(tag("p", text(one), class_="warning", lang="en") for one in found.get("doubtful") or ())
    note = tag("p", words("evaluation.note", clients=words.count(found.get("clients"))), class_="quiet")
    headings = [words("measured"), words("value"), words("noise")]
    return doubts + plain_table(headings, rows, name=words.plain("evaluation")) + cost + note


def _interval(value: float | None, std: float | None) -> tuple[float, float] | None:
    return None if value is None or std is None else (value - 2 * std, value + 2 * std)
