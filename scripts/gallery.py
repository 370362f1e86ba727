"""Make the pictures and tables of docs/gallery.md again: `python -m scripts.gallery --data DIR [--only NAME]`.

Each is made by the very command that the page names, in a temporary folder where `data` leads to DIR, with a state of
its own. Figures are those of seeded simulations, so the same machine makes the same ones.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts._common import ROOT
from scripts._exhibit_tables import Report
from scripts._exhibits import EXHIBITS, Exhibit, words

PAGE = ROOT / "docs/gallery.md"
PICTURES = ROOT / "docs/_static/gallery"
BLOCK = re.compile(
    r"(?P<start><!-- (?P<name>[\w-]+): made by scripts\.gallery -->\n).*?(?P<end><!-- end -->)", re.DOTALL
)


def main() -> None:
    """Run, copy the pictures, write the tables into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds mnist/ and phishing/")
    parser.add_argument("--only", action="append", choices=[one.name for one in EXHIBITS], help="this one, or these")
    given = parser.parse_args()
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        shop = Workshop(Path(made), data=given.data)
        for exhibit in EXHIBITS:
            if given.only is None or exhibit.name in given.only:
                hang(exhibit, shop)


def hang(exhibit: Exhibit, shop: "Workshop") -> None:
    """Make one exhibit anew, at its place."""
    reports = [shop.run(command) for command in exhibit.commands]
    table = exhibit.table(reports[0], reports[-1])
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), exhibit.name, table), encoding="utf-8")
    if exhibit.picture:
        shutil.copyfile(shop.picture(exhibit), PICTURES / f"{exhibit.name}.svg")


def with_table(page: str, name: str, table: Sequence[str]) -> str:
    """The page with this table in the place of that name; all else as it is."""

    def fill(block: "re.Match[str]") -> str:
        if block["name"] != name:
            return block[0]
        return f"{block['start']}\n" + "".join(f"{line}\n" for line in table) + f"\n{block['end']}"

    return BLOCK.sub(fill, page)


class Workshop:
    """A folder in which commands are run, each once, and what they printed."""

    def __init__(self, folder: Path, *, data: Path) -> None:
        self.folder = folder
        (folder / "data").symlink_to(data.resolve(), target_is_directory=True)
        self._reports: dict[str, Report] = {}
        self._drawn: dict[str, dict[str, Path]] = {}

    def run(self, command: str) -> Report:
        """What a command of the page reports; its pictures are put aside before the next one draws over them."""
        if command not in self._reports:
            print(command, file=sys.stderr)
            paths = [str(ROOT), str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
            state = {"INCROWD_STATE": str(self.folder / "state"), "PYTHONPATH": os.pathsep.join(paths)}
            done = subprocess.run(
                [sys.executable, "-m", "incrowd", *words(command), "--json"],
                cwd=self.folder,
                env=os.environ | state,
                stdout=subprocess.PIPE,
                check=True,
            )
            self._reports[command] = json.loads(done.stdout)
            self._drawn[command] = self._put_aside(len(self._reports))
        return self._reports[command]

    def picture(self, exhibit: Exhibit) -> Path:
        """What the first of an exhibit's commands drew that draws."""
        name = f"{exhibit.name}.svg"
        return next(self._drawn[command][name] for command in exhibit.commands if name in self._drawn[command])

    def _put_aside(self, number: int) -> dict[str, Path]:
        aside = self.folder / "pictures" / str(number)
        aside.mkdir(parents=True)
        drawn = [*self.folder.glob("*.svg"), *self.folder.glob("out/figures/*.svg")]
        return {path.name: path.rename(aside / path.name) for path in drawn}


if __name__ == "__main__":
    main()
