"""Make the notebook of the tour, run it, and make its page: `python -m scripts.tour [--check]`.

What is written by hand is examples/tour.py, in cells that editors know. From it comes examples/tour.ipynb with all
that it prints and shows, and from that docs/tour.md. With `--check` nothing is written: the notebook is run again, and
what it prints has to be what is stored: rates of games (`62.3%`) to within a point and numbers with a decimal point to
within a thousandth, for processors round differently, and whole numbers exactly.
"""

import argparse
import base64
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator
from typing import Any

import nbformat
from nbclient import NotebookClient

from scripts._common import ROOT, finish

SOURCE = ROOT / "examples" / "tour.py"
NOTEBOOK = ROOT / "examples" / "tour.ipynb"
PAGE = ROOT / "docs" / "tour.md"
PICTURES = ROOT / "docs" / "_static" / "tour"
SECONDS = 300
"""So long a cell may take."""

Cell = dict[str, Any]
Notebook = dict[str, Any]

_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?%?")


def main() -> None:
    """Write all anew, or say what is not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; say what is not current")
    check = parser.parse_args().check
    fresh = run(notebook(SOURCE.read_text(encoding="utf-8")))
    if check:
        finish([*stale(), *differences(stored(), fresh)])
    NOTEBOOK.write_text(json.dumps(fresh, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PICTURES.mkdir(parents=True, exist_ok=True)
    for place in PICTURES.iterdir():
        place.unlink()
    for name, png in pictures(fresh):
        (PICTURES / name).write_bytes(png)
    PAGE.write_text(page(fresh), encoding="utf-8")


def notebook(source: str) -> Notebook:
    """The cells of a file, not run yet."""
    cells: list[dict[str, Any]] = []
    for number, part in enumerate(re.split(r"^# %%", source, flags=re.MULTILINE)[1:]):
        kind, _, text = part.partition("\n")
        cell: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}}
        if kind.strip() == "[markdown]":
            words = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.strip().splitlines())
            cells.append({"cell_type": "markdown", **cell, "source": words})
        else:
            code: dict[str, Any] = {"execution_count": None, "outputs": [], "source": text.strip()}
            cells.append({"cell_type": "code", **cell, **code})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def run(made: Notebook) -> Notebook:
    """The same with what it prints and shows, and nothing of where and when."""
    with tempfile.TemporaryDirectory() as folder:
        # Jupyter, IPython and the notebook leave files: all of them here.
        places = {"JUPYTER_RUNTIME_DIR": folder, "IPYTHONDIR": folder, "INCROWD_STATE": folder}
        paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        os.environ.update(places)
        node = nbformat.from_dict(made)  # type: ignore[no-untyped-call]  # it has no types
        resources = {"metadata": {"path": folder}}
        quiet = ["--log-level=ERROR"]  # it warns of its port, which is of this machine alone
        client = NotebookClient(node, timeout=SECONDS, resources=resources, extra_arguments=quiet)
        fresh: Notebook = json.loads(json.dumps(client.execute(env=os.environ | paths)))
    for number, cell in enumerate(each for each in fresh["cells"] if each["cell_type"] == "code"):
        cell["metadata"], cell["execution_count"] = {}, number + 1
    fresh["metadata"].pop("language_info", None)
    return fresh


def stored() -> Notebook:
    """The notebook as it lies in the repository."""
    kept: Notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return kept


def stale() -> list[str]:
    """What of the stored notebook and page does not come from the file: told without running anything."""
    kept = stored()
    found = []
    wanted = [cell["source"] for cell in notebook(SOURCE.read_text(encoding="utf-8"))["cells"]]
    if [cell["source"] for cell in kept["cells"]] != wanted:
        found.append("examples/tour.ipynb: its cells are not those of examples/tour.py")
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page(kept):
        found.append("docs/tour.md: it is not what the notebook makes")
    for name, png in pictures(kept):
        if not (PICTURES / name).exists() or (PICTURES / name).read_bytes() != png:
            found.append(f"docs/_static/tour/{name}: it is not the notebook's")
    return found


def differences(kept: Any, fresh: Notebook) -> list[str]:
    """What a run prints otherwise than is stored, or shows more or less often."""
    if (kept_cells := len(kept["cells"])) != (cells := len(fresh["cells"])):
        return [f"examples/tour.ipynb: {kept_cells} cells instead of {cells}"]
    found = []
    for old, new in zip(kept["cells"], fresh["cells"], strict=True):
        before, now = printed(old), printed(new)
        if not alike(before, now):
            found.append(f"{old['id']} prints\n{now}\ninstead of\n{before}")
        if len(list(_shown(old))) != len(list(_shown(new))):
            found.append(f"{old['id']} shows {len(list(_shown(new)))} pictures instead of {len(list(_shown(old)))}")
    return found


def alike(before: str, now: str) -> bool:
    """Whether two texts have the same words and whole numbers, rates within a point, others within a thousandth."""
    if _words(before) != _words(now):
        return False
    return all(map(_close, _NUMBER.findall(before), _NUMBER.findall(now)))


def _words(text: str) -> str:
    return _NUMBER.sub(lambda number: "%" if number[0].endswith("%") else "#", text)


def _close(one: str, other: str) -> bool:
    if one == other:
        return True
    if one.endswith("%") and other.endswith("%"):
        return abs(_value(one) - _value(other)) <= 1
    whole = "." not in one or "." not in other
    return not whole and math.isclose(_value(one), _value(other), rel_tol=1e-3)


def _value(number: str) -> float:
    return float(number.replace(",", "").rstrip("%"))


def printed(cell: Cell) -> str:
    """What a cell prints."""
    return "".join(each["text"] for each in cell.get("outputs", ()) if each["output_type"] == "stream")


def pictures(made: Notebook) -> Iterator[tuple[str, bytes]]:
    """The pictures of a notebook, each with a name."""
    for cell in made["cells"]:
        for number, png in enumerate(_shown(cell)):
            yield f"{cell['id']}-{number}.png", png


def page(made: Notebook) -> str:
    """The notebook as a page of the documentation."""
    parts = ["<!-- Written by `python -m scripts.tour` from examples/tour.py. -->\n"]
    for cell in made["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append(f"{cell['source']}\n")
            continue
        parts.append(f"```{{code-block}} python\n{cell['source']}\n```\n")
        if printed(cell):
            parts.append(f"```text\n{printed(cell).rstrip()}\n```\n")
        for number, _ in enumerate(_shown(cell)):
            parts.append(f"![{_title(made, cell)}](_static/tour/{cell['id']}-{number}.png)\n")
    parts.append("*This page is a notebook: `examples/tour.ipynb`.*\n")
    return "\n".join(parts)


def _shown(cell: Cell) -> Iterator[bytes]:
    for output in cell.get("outputs", ()):
        if "image/png" in output.get("data", {}):
            yield base64.b64decode(output["data"]["image/png"])


def _title(made: Any, cell: Cell) -> str:
    """The last heading above a cell: what its pictures are of."""
    above = made["cells"][: made["cells"].index(cell)]
    headings = [line for each in above for line in each["source"].splitlines() if re.match(r"##? ", line)]
    return str(headings[-1]).lstrip("# ")


if __name__ == "__main__":
    main()
