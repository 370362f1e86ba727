"""What was measured: statements that hold or do not, tables for people, one JSON object for machines."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import typer

from harness.seeds import Entry
from incrowd.cli import print_facts, print_json, print_table

Names = Collection[str] | Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One statement of a paper, what was measured about it, and whether they agree."""

    statement: str
    measured: str
    agrees: bool

    def to_json(self) -> Entry:
        """As plain data."""
        return asdict(self)


def say(line: str) -> None:
    """Report progress, beside the results."""
    typer.echo(line, err=True)


def show(report: Entry, *parts: str | Entry | Sequence[Entry], as_json: bool) -> None:
    """One JSON object on standard output; or, for people, these lines, facts and tables, and its findings."""
    if as_json:
        print_json(report)
        return
    for part in parts:
        if isinstance(part, str):
            typer.echo(part)
        elif isinstance(part, Mapping):
            print_facts({name.replace("_", " "): value for name, value in part.items()})
        else:
            print_table(list(part), leave_out=set())
    for one in report.get("findings", []):
        typer.echo(f"{'agrees' if one['agrees'] else 'DIFFERS':8} {one['statement']}: {one['measured']}")
    if "findings" in report and "files" in report:
        typer.echo(f"drawn: {', '.join(report['files'])}")


def columns(entries: Iterable[Entry], names: Names, *, digits: int | None = None, none: object = None) -> list[Entry]:
    """Some columns of a table, under these names or others; numbers with so many digits, and something for None."""
    picked = names if isinstance(names, Mapping) else {name: name for name in names}
    return [{column: _short(entry[name], digits, none) for column, name in picked.items()} for entry in entries]


def _short(value: object, digits: int | None, none: object) -> object:
    if isinstance(value, float) and digits is not None:
        return float(f"{value:.{digits}g}")
    return none if value is None else value


def markdown(rows: Sequence[Mapping[str, object]], *, left: Collection[str] = ()) -> list[str]:
    """The lines of a table in Markdown, whose columns are the names in the first row; all but some to the right."""
    names = list(rows[0])
    rule = ["---" if name in left else "---:" for name in names]
    return [_line(names), _line(rule), *(_line([row[name] for name in names]) for row in rows)]


def _line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
