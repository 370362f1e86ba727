"""What a paper states, beside what was measured."""

from dataclasses import asdict, dataclass
from typing import Any

import typer


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One statement of the paper, what was measured about it, and whether they agree."""

    statement: str
    measured: str
    agrees: bool

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def print_findings(found: dict[str, Any]) -> None:
    """A line for each statement of a paper, what was measured about it, and the files of the pictures."""
    for one in found["findings"]:
        typer.echo(f"{'agrees' if one['agrees'] else 'DIFFERS':8} {one['statement']}: {one['measured']}")
    if "files" in found:
        typer.echo(f"drawn: {', '.join(found['files'])}")
