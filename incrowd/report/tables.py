"""Tables of a page: silos, evaluation, audit, search, pool, ledgers and settings."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from incrowd.report.markup import (
    NOTHING,
    UNKNOWN,
    Markup,
    count,
    epsilon_text,
    facts,
    folded,
    joined,
    number,
    percent,
    plain_table,
    tag,
    typeset,
)
from incrowd.report.shown import Facts, Shown
from incrowd.runs.folder import ranked

_SILOS, _CLASSES, _RUNS, _WEIGHTS, _LONGEST = 100, 30, 60, 30, 300
_LINES, _LEDGERS, _ALL = 12, 40, 20_000
_ADVERSARIES = "Three adversaries, and what each may learn of one contribution"
_HOLDS = "Attacked in simulation, the promise held."
_BROKEN = "An attack in simulation did better than the promise allows: do not rely on it."
_FINDINGS = ("Attack", "Epsilon, at least", "Stated", "AUC", "Found at 0.1 % false alarms", "Allowed there", "Trials",
             "Holds")  # fmt: skip
_ABOUT = (
    "Every line was on disk before anything was released for it. Each hash binds a line to all lines before it: "
    "the keeper of the last hash can tell whether any line was changed. Days, labels and places are left out."
)
_PROBLEMS = {
    "unreadable": "The ledger cannot be read from here, or is not intact: ask its keeper.",
    "another": "The ledger in that place is another one: ask its keeper.",
}
_ENTRIES = {"terms": "terms", "reserve": "reserved", "charge": "charged", "release": "given back"}
_APART = "What tells the runs apart"
_ALIKE = "The runs have the same settings, as far as these may be shown."


def _head(one: Shown, of: Sequence[object]) -> Markup:
    return tag("h3", one.name) if len(of) > 1 else NOTHING


def silos(shown: Sequence[Shown]) -> Markup:
    """Show what each silo spent of its budget, the largest first."""
    runs = [one for one in shown if one.silos]
    return joined(_head(one, runs) + _silos_of(one) for one in runs)


def _silos_of(one: Shown) -> Markup:
    rows = [
        [
            silo["silo"],
            epsilon_text(silo["epsilon"]),
            epsilon_text(silo["budget"]),
            "yes" if silo["stopped"] else "no",
        ]
        for silo in sorted(one.silos, key=lambda silo: -silo["epsilon"])
    ]
    about = (
        f"{count(len(rows))} silos. Each has a budget of its own and a ledger of its own; one whose budget is spent "
        "sends nothing more."
    )
    left = max(len(rows) - _SILOS, 0)
    headings = ("Silo", "Epsilon", "Budget", "Stopped")
    return tag("p", about) + plain_table(headings, rows[:_SILOS], name="What each silo spent", left_out=left)


def evaluation(shown: Sequence[Shown]) -> Markup:
    """Show what was measured on the clients' own examples, noised and paid for."""
    return joined(
        tag("div", _head(one, shown), _evaluated(found), class_="content") for one in shown for found in one.evaluations
    )


def _evaluated(found: Facts) -> Markup:
    rows = []
    for key, spelt in (("accuracy", percent), ("loss", number)):
        if found.get(key) is not None:
            noise = f"± {spelt(found.get(f'{key}_std'))} (one standard deviation of the noise)"
            rows.append([key.capitalize(), spelt(found[key]), noise])
    if found.get("balanced_accuracy") is not None:
        rows.append(["Balanced accuracy", percent(found["balanced_accuracy"]), ""])
    by_class = list(found.get("by_class") or ())[:_CLASSES]
    rows += [[f"Recall of class {one.get('class')}", percent(one.get("recall")), ""] for one in by_class]
    cost, total = epsilon_text(found.get("epsilon")), epsilon_text(found.get("epsilon_of_all"))
    note = (
        f"The mean over all {count(found.get('clients'))} clients, each of which counts the same; one that "
        "does not answer counts as one half. They are the clients that training asks."
    )
    return joined(
        [
            plain_table(("Measured", "Value", "Noise"), rows, name="On the clients' own examples"),
            tag("p", f"This cost epsilon {cost}; all together epsilon {total}."),
            tag("p", note, class_="quiet"),
        ]
    )


def audits(shown: Sequence[Shown]) -> Markup:
    """Show the audit of each run that has one."""
    found = [(one, one.audit) for one in shown if one.audit]
    return joined(_head(one, found) + _audit(audit) for one, audit in found)


def _audit(audit: Facts) -> Markup:
    holds = audit.get("holds", True)
    summary = (
        f"Promised: epsilon {epsilon_text(audit.get('epsilon_claimed'))}. The attacks prove that it is at least "
        f"{number(audit.get('epsilon_lower_bound'))}, with {percent(audit.get('confidence'), 0)} "
        "confidence. An attack can show that a promise is broken; it cannot prove that one is kept."
    )
    findings = [
        [
            typeset(one.get("attack", "")),
            number(one.get("lower_bound")),
            epsilon_text(one.get("claimed")),
            number(one.get("auc")),
            percent(one.get("true_positives"), 2),
            percent(one.get("allowed"), 2),
            count(one.get("trials")),
            _holds(one),
        ]
        for one in audit["findings"]
    ]
    checks = [
        [typeset(one.get("name", "")), _measured(one.get("measured")), _measured(one.get("stated")), _holds(one)]
        for one in audit["checks"]
    ]
    return joined(
        [
            tag("p", _HOLDS if holds else _BROKEN, class_="lead" if holds else "warning"),
            tag("p", summary),
            plain_table(_FINDINGS, findings, name="What attacks found", kind="attacks") if findings else NOTHING,
            plain_table(("Check", "Measured", "Stated", "Holds"), checks, name="Checks from the inside"),
        ]
    )


def _holds(one: Facts) -> str:
    return "yes" if one.get("holds", True) else "NO"


def _measured(value: object) -> str:
    if isinstance(value, int | float):
        return number(float(value))
    return UNKNOWN if value is None else typeset(str(value))


def searches(shown: Sequence[Shown]) -> Markup:
    """Show the settings that a search compared, the best on top."""
    return joined(_search(one, one.search) for one in shown if one.search is not None)


def _search(one: Shown, found: Facts) -> Markup:
    if not one.over:
        return tag("p", "It is not over; what it compares is shown when it is.")
    rows = ranked(found["rows"])
    about = tag(
        "p", f"{count(found.get('settings_compared'))} settings were compared; every run is paid for and shown."
    )
    if not rows:
        return about
    keys = list(rows[0]["settings"])
    values = [[row["settings"].get(key) for key in keys] for row in rows]
    body = [
        [
            str(place),
            *(number(value) if isinstance(value, float) else _spelt(value) for value in its),
            percent(row.get("accuracy"), 2),
            number(row.get("loss")),
            epsilon_text(row.get("epsilon")),
            count(row.get("rounds")),
        ]
        for place, (row, its) in enumerate(zip(rows[:_RUNS], values, strict=False), start=1)
    ]
    headings = ["#", *(tag("code", key) for key in keys), "Accuracy", "Loss", "Epsilon", "Rounds"]
    left = max(len(rows) - _RUNS, 0)
    return about + plain_table(headings, body, name="Comparison", kind="ranked", left_out=left)


def pools(shown: Sequence[Shown]) -> Markup:
    """Show each draw-and-discard pool, as its own server does."""
    return joined(_head(one, shown) + _pool(one.pool) for one in shown if one.pool is not None)


def _pool(pool: Facts) -> Markup:
    spread, turned = pool.get("spread") or {}, pool.get("turned_away") or {}
    rows = [
        ["Contributions accepted", count(pool.get("accepted"))],
        *([f"Turned away: {why.replace('_', ' ')}", count(times)] for why, times in turned.items()),
        ["Came again, and counted once", count(pool.get("repeated", 0))],
        ["Instances in the pool", count(pool.get("instances"))],
        ["Weights of the model", count(pool.get("size"))],
        [
            "How far instances are apart (theory)",
            f"{number(spread.get('measured'))} ({number(spread.get('theory'))})",
        ],
        ["Fingerprint of what is asked", tag("code", pool.get("fingerprint", ""))],
    ]
    parts = [plain_table(("Figure", "Value"), rows, name="Pool")]
    if views := pool.get("adversaries"):
        headings = ("Adversary", "Sees", "Epsilon", "Delta", "What the figure is")
        told = [
            [
                view.get("adversary", ""),
                view.get("sees", ""),
                epsilon_text(view.get("epsilon")),
                number(view.get("delta")),
                view.get("meaning", ""),
            ]
            for view in views
        ]
        parts += [tag("h3", _ADVERSARIES), plain_table(headings, told, name=_ADVERSARIES, kind="wordy")]
    if weights := (pool.get("weights") or [])[:_WEIGHTS]:
        largest = [[one["feature"], one["output"], number(one["weight"])] for one in weights]
        table = plain_table(("Feature", "Output", "Weight"), largest, name="The largest weights")
        parts.append(folded("The largest weights", table))
    parts.append(folded("The statement itself, word for word", tag("pre", pool.get("statement", ""))))
    return joined(parts)


def ledgers(shown: Sequence[Shown], *, live: bool = False) -> Markup:
    """Show the terms and the first and last lines of each ledger, and fold in all lines.

    A `live` page has no folded lines, which it would send anew each time.
    """
    books = [(one, book) for one in shown for book in one.ledgers]
    if not books:
        return NOTHING
    parts = [tag("p", _ABOUT, class_="quiet")]
    for place, (one, book) in enumerate(books[:_LEDGERS]):
        name = " · ".join([one.name] * (len(shown) > 1) + [book["party"]] * bool(book["party"]))
        found = _ledger(book, live=live)
        if len(books) > 2:
            parts.append(folded(name or one.name, found, id=f"book-{place}"))
        else:
            parts += [tag("h3", name) if name else NOTHING, found]
    if len(books) > _LEDGERS:
        parts.append(tag("p", f"{count(len(books) - _LEDGERS)} more ledgers are left out here.", class_="quiet"))
    return joined(parts)


def _ledger(book: Facts, *, live: bool) -> Markup:
    if book["problem"] is not None:
        return tag("p", _PROBLEMS[book["problem"]], class_="warning")
    lines = book["lines"]
    terms = {
        "Data": book["data"],
        "Budget": f"ε = {epsilon_text(book['budget'])}, δ = {number(book['delta'])}",
        "Spent": f"epsilon {epsilon_text(book['epsilon'])}, by all that is charged there",
        "Lines": count(len(lines)),
        "Last hash": tag("code", book["head"]),
    }
    if book["epsilon"] is None:
        del terms["Spent"]
    rows = [_line(line) for line in lines]
    if cut := len(lines) > 2 * _LINES:
        rows = [*rows[:_LINES], ["…"] * 5, *rows[-_LINES:]]
    parts = [facts(terms), plain_table(("Line", "What", "Event", "Times", "Hash"), rows, name="Ledger", kind="book")]
    if cut and not live:
        all_lines = "\n".join(_plain(line) for line in lines[:_ALL])
        parts.append(folded(f"All {count(len(lines))} lines", tag("pre", all_lines)))
    return joined(parts)


def _line(line: Facts) -> list[str]:
    others = line["kind"] == "charge" and line["own"] is False
    marks = ["seeded"] * bool(line["seeded"]) + ["another run"] * others
    kind = _ENTRIES.get(line["kind"], str(line["kind"]))
    what = kind if line["round"] is None else f"{kind} · round {line['round'] + 1}"
    chips = [tag("span", mark, class_="chip text") for mark in marks]
    times = count(line["count"]) if line["count"] else ""
    return [count(line["position"]), joined([what, *chips]), line["event"], times, tag("code", line["hash"])]


def _plain(line: Facts) -> str:
    round_ = "" if line["round"] is None else f" {line['round'] + 1}"
    times = f" x {line['count']}" if line["count"] > 1 else ""
    kind = _ENTRIES.get(line["kind"], str(line["kind"]))
    return f"{line['position']:>6}  {line['hash']}  {kind}{round_}  {line['event']}{times}"


def settings(shown: Sequence[Shown]) -> Markup:
    """Show the settings of one run; of several the differences, and all settings folded in."""
    runs = [one for one in shown if one.settings]
    if not runs:
        return NOTHING
    if len(runs) == 1:
        return _sections(runs[0])
    each = [
        {f"{section}.{key}": _spelt(value) for section, its in one.settings.items() for key, value in its.items()}
        for one in runs
    ]
    keys = dict.fromkeys(key for flat in each for key in flat)
    apart = [key for key in keys if len({flat.get(key, "") for flat in each}) > 1]
    table = NOTHING
    if apart:
        rows = [[tag("code", key), *(flat.get(key, UNKNOWN) for flat in each)] for key in apart]
        table = plain_table(["Setting", *(one.name for one in runs)], rows, name=_APART)
    all_settings = (folded(one.name, _sections(one)) for one in runs)
    return joined([tag("p", _APART if apart else _ALIKE), table, *all_settings])


def versions(shown: Sequence[Shown], *, own: str) -> Markup:
    """Show the version that made each run, and the one that made the page."""
    made = {f"Run {one.name}": f"incrowd {one.version}" for one in shown if one.version}
    return facts(made | {"This page": f"incrowd {own}"})


def _spelt(value: Any) -> str:
    words = UNKNOWN if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}…"


def _sections(one: Shown) -> Markup:
    stated: Mapping[str, dict[str, str]] = {
        section: {key: _spelt(value) for key, value in values.items() if value is not None}
        for section, values in one.settings.items()
    }
    parts = (
        tag("div", tag("h3", section), facts(values), class_="settings") for section, values in stated.items() if values
    )
    return tag("div", *parts, class_="columns")
