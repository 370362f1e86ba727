"""A tracker of your own: a web page of the run's rounds.

Run: python examples/extensions/tracker.py
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import incrowd
from incrowd.runs.folder import Record
from incrowd.testing import check_tracker
from incrowd.types import register


class WebPage:
    """A table of rounds, `rounds.html` in the run's folder."""

    def __init__(self, folder: Path) -> None:
        self.path, self.rows = folder / "rounds.html", list[str]()

    def start(self, settings: Mapping[str, Any], past: Sequence[Record]) -> None:
        """Begin with the rounds of a run that goes on."""
        self.rows = [f"<tr><th colspan=3>{settings['rounds']} rounds</th></tr>", *map(self.row, past)]

    def round(self, record: Record) -> None:
        """Add a row."""
        self.rows.append(self.row(record))

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Write the page, of a stopped run too."""
        caption = "stopped" if summary is None else f"accuracy {summary.get('accuracy')}"
        self.path.write_text(f"<table><caption>{caption}</caption>{''.join(self.rows)}</table>", encoding="utf-8")

    def row(self, record: Record) -> str:
        """A round's epsilon and accuracy, if it was measured."""
        return f"<tr><td>{record.round}</td><td>{record.epsilon:.3f}</td><td>{record.accuracy or ''}</td></tr>"


check_tracker(WebPage)
register("trackers", "page", WebPage)

federation = incrowd.Federation.from_tables(
    {
        "local": {"learning_rate": 0.3, "batch_size": 10},
        "privacy": {"epsilon": 8.0, "delta": 1e-4, "rounds": 5},
        "run": {"trackers": ["page"]},
    }
)
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out/page")
federation.train(folder, progress=False)
print(f"{(folder / 'rounds.html').read_text().count('<tr>')} rows in {folder / 'rounds.html'}")
