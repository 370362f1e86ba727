"""The card of a released model: a page for whoever is handed the model, of what may be handed on and nothing else."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from incrowd.privacy.statement import rounded_up
from incrowd.runs.contents import RESULT_KEYS, part, shown_settings

_MEASURED = ("accuracy", "loss")
_MEANT = ("delimiter", "decimal", "thousands", "encoding", "blanks", "missing_texts")
_ABOUT_DATA = ("columns", "features", "classes", *_MEANT)  # these have lines, or a section, of their own


def card(settings: Mapping[str, Any], summary: Mapping[str, Any], *, statement: str) -> str:
    """The page, in Markdown, of what `settings_in` gives, what a run came to, and what is promised.

    Guarantee: of the settings and of the result it shows what `incrowd.runs.contents` lists, and the names of the
    columns, which are in the header of the table.
    """
    shown, result = shown_settings(settings["config"]), part(summary, RESULT_KEYS)
    data = shown["data"]
    lines = [
        f"# A model of {result['data']}",
        "",
        *_facts(
            {
                "data": result["data"],
                "clients": result["clients"],
                "protected": f"one {shown['privacy']['unit']}",
                "epsilon": rounded_up(result["epsilon"]),
                "delta": result["delta"],
                "rounds": result["rounds"],
                "simulated": result["simulated"],
                "incrowd": settings["version"],
            }
        ),
        *_section("What is promised", ["```text", statement, "```"]),
        *_section("How good it is", list(_measured(result))),
        *_section("What it takes and gives", list(_columns(data, settings["columns"]))),
        *_section("How it was trained", list(_trained(shown))),
    ]
    return "\n".join(lines) + "\n"


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", f"## {title}", "", *lines]


def _facts(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "| | |"
    yield "| --- | --- |"
    for name, value in facts.items():
        yield f"| {_cell(name)} | {_cell(_short(value))} |"


def _measured(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"Test set: {result['test_set']}."
    measured = {name: result[name] for name in _MEASURED if result.get(name) is not None}
    for name, value in (result.get("metrics") or {}).items():
        if isinstance(value, int | float):
            measured[name] = value
        elif name == "baseline" and isinstance(value, Mapping):
            measured |= {f"{inner}, baseline": number for inner, number in value.items() if number is not None}
    if measured:
        yield ""
        yield from _facts({name.replace("_", " "): value for name, value in measured.items()})


def _columns(data: Mapping[str, Any], columns: list[str]) -> Iterator[str]:
    stated = data.get("columns") or {}
    if columns:
        yield "Columns of a table, found by their names:"
        yield ""
        meaning = {name: stated.get(name, "a number") for name in columns}
        yield from _facts({name: value if isinstance(value, str) else _json(value) for name, value in meaning.items()})
        yield ""
        written = {name: data[name] for name in _MEANT if name in data}
        yield f"How its cells are written: {', '.join(f'{name} {_json(value)}' for name, value in written.items())}."
        yield ""
    if "label" not in data:
        yield "Examples like those that it learned from."
    elif data["classes"] is None:
        yield f"It gives a number: {data['label']}."
    else:
        classes = data["classes"]
        names = [str(one) for one in (classes if isinstance(classes, list | tuple) else range(classes))]
        yield f"It gives one of the classes of {data['label']}: {', '.join(names)}."


def _trained(shown: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for section, values in shown.items():
        kept = {name: value for name, value in values.items() if value is not None}
        if section == "stop" and not kept.keys() & {"patience", "target"}:  # nothing ends the run early
            continue
        if section == "data":
            kept = {name: value for name, value in kept.items() if name not in _ABOUT_DATA}
        yield f"- {section}: {', '.join(f'{name} {_json(value)}' for name, value in kept.items()) or 'as usual'}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)


def _cell(text: str) -> str:
    """A text in a cell of a table, which a bar or a line's end would break."""
    return " ".join(text.replace("|", "\\|").split())
