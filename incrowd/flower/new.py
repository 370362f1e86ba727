"""An app of Flower's that trains under a plan and a ledger, written for its user to change."""

import json
import re
from importlib.resources import files
from pathlib import Path

from incrowd import _files
from incrowd.errors import ConfigError

FILES = ("pyproject.toml", "server_app.py", "client_app.py")


def new_app(folder: Path) -> list[Path]:
    """Write an app, which will keep its ledger and model, into a new folder; return the files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(field="folder", value=str(folder), remedy="it is there already: name a new folder")
    where = folder.resolve()
    name = re.sub(r"[^a-z0-9]+", "-", where.name.lower()).strip("-")
    if not re.search("[a-z]", name):
        raise ConfigError(field="folder", value=str(folder), remedy="give a name with letters: the app is called so")
    _files.folder(folder)
    told = {"NAME": name, "LEDGER": str(where / "ledger.sqlite"), "MODEL": str(where / "model.npz")}
    written = []
    for file in FILES:
        text = files("incrowd.flower").joinpath("app", file).read_text("utf-8")
        if file == "pyproject.toml":
            for word, value in told.items():
                text = text.replace(f'"{word}"', json.dumps(value, ensure_ascii=False))  # which TOML has, too
        _files.write(folder / file, text)
        written.append(folder / file)
    return written
