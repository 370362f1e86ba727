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
REPORT = "report.json"
PICTURES = ROOT / "docs/_static/gallery"
BLOCK = re.compile(
    r"(?P<start><!-- (?P<name>[\w-]+): made by scripts\.gallery -->\n).*?(?P<end><!-- end -->)", re.DOTALL
)


def main() -> None:
    """Run, copy the pictures, write the tables into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds mnist/ and phishing/")
    parser.add_argument("--keep", type=Path, help="where all that is made is kept, and not made again")
    parser.add_argument("--only", action="append", choices=[one.name for one in EXHIBITS], help="this one, or these")
    given = parser.parse_args()
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        shop = Workshop(given.keep or Path(made), data=given.data)
        for exhibit in EXHIBITS:
            if given.only is None or exhibit.name in given.only:
                hang(exhibit, shop)


def hang(exhibit: Exhibit, shop: "Workshop") -> None:
    """Make one exhibit anew, at its place."""
    table = exhibit.table(*(shop.run(command) for command in exhibit.commands))
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), exhibit.name, table), encoding="utf-8")
    if exhibit.drawn:
        shutil.copyfile(shop.picture(exhibit), PICTURES / f"{exhibit.name}.svg")


def with_table(page: str, name: str, table: Sequence[str]) -> str:
    """The page with this table in the place of that name; all else as it is."""

    def fill(block: "re.Match[str]") -> str:
        if block["name"] != name:
            return block[0]
        return f"{block['start']}\n" + "".join(f"{line}\n" for line in table) + f"\n{block['end']}"

    return BLOCK.sub(fill, page)


class Workshop:
    """A folder in which commands are run, each once; what they printed and drew stays there."""

    def __init__(self, folder: Path, *, data: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        leads = folder / "data"
        leads.unlink(missing_ok=True)
        leads.symlink_to(data.resolve(), target_is_directory=True)

    def run(self, command: str) -> Report:
        """What a command of the page reports; its pictures are put aside before the next one draws over them."""
        made = self._made(command)
        if not made.is_dir():
            print(command, file=sys.stderr)
            found = self._ran(command)
            unfinished = self.folder / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            for path in [*self.folder.glob("*.svg"), *self.folder.glob("out/figures/*.svg")]:
                path.rename(unfinished / path.name)
            (unfinished / REPORT).write_bytes(found)
            made.parent.mkdir(exist_ok=True)
            unfinished.rename(made)  # all of it or nothing
        return dict(json.loads((made / REPORT).read_bytes()))

    def picture(self, exhibit: Exhibit) -> Path:
        """What hangs of an exhibit."""
        command = exhibit.beats if exhibit.drawn == "beats" else exhibit.command
        return self._made(command) / f"{exhibit.name}.svg"

    def _made(self, command: str) -> Path:
        return self.folder / "made" / re.sub(r"[^\w.]+", "-", " ".join(words(command)[1:]))

    def _ran(self, command: str) -> bytes:
        paths = [str(ROOT), str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {"INCROWD_STATE": str(self.folder / "state"), "PYTHONPATH": os.pathsep.join(paths)}
        line = [sys.executable, "-m", "incrowd", *words(command), "--json"]
        done = subprocess.run(line, cwd=self.folder, env=os.environ | own, stdout=subprocess.PIPE, check=True)
        return done.stdout


if __name__ == "__main__":
    main()
