"""A data source of your own: measurements in an SQLite database, with a client for each station.

Run: python examples/extensions/data_source.py
"""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import incrowd
from incrowd.testing import check_data_source
from incrowd.types import register


def stations(*, file: str) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
    """Features and labels of each station, by name."""
    with closing(sqlite3.connect(file)) as database:
        rows = database.execute("SELECT station, heat, wind, rain FROM measured ORDER BY station, rowid").fetchall()
    names = sorted({name for name, *_ in rows})
    numbers = {name: np.array([row[1:] for row in rows if row[0] == name], np.float32) for name in names}
    return {name: (one[:, :2], one[:, 2].astype(np.int64)) for name, one in numbers.items()}


with TemporaryDirectory() as folder:
    path = str(Path(folder) / "weather.sqlite")
    with closing(sqlite3.connect(path)) as weather, weather:
        weather.execute("CREATE TABLE measured (station TEXT, heat REAL, wind REAL, rain INTEGER)")
        made_up = [(f"station {row % 3}", row / 10, row % 7, row % 2) for row in range(30)]
        weather.executemany("INSERT INTO measured VALUES (?, ?, ?, ?)", made_up)
    check_data_source(stations, file=path)
    register("data_sources", "stations", stations)
    data = incrowd.Clients.from_source("stations", arguments={"file": path}, classes=2, name="weather", clients=3)
print(data.describe())
