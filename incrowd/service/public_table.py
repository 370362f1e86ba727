"""A public table that a server may know: how well what was learnt predicts it."""

from pathlib import Path
from typing import Any

import numpy as np

from incrowd.drawdiscard.csv_table import read_csv_columns
from incrowd.drawdiscard.fields import BooleanField, CategoryField
from incrowd.drawdiscard.predictor import Predictor
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import DataError

MOST = 20_000
"""So many rows are enough."""


class PublicTable:
    """The rows of a CSV file that no device has: a comparison that costs no privacy.

    Guarantee: nothing of it reaches a device or the pool.

    Edge cases: a file without one of the columns that the specification needs, or without rows whose response counts,
    is refused (`DataError`); rows beyond the first `MOST` are left out.
    """

    def __init__(self, path: Path, asked: Specification) -> None:
        self._asked = asked
        self._features, self._responses = asked.encode(read_csv_columns(path, asked, most=MOST))
        if not len(self._responses):
            raise DataError(f"{path}: no row has a {asked.response} that counts")

    def score(self, predictor: Predictor) -> dict[str, Any]:
        """How well weights predict the table: the share of right answers, or of the variance that is explained."""
        predicted = np.asarray(self._asked.model.predict(predictor.weights, self._features), np.float64)
        responses = np.asarray(self._responses, np.float64)
        field = self._asked.predicted
        if isinstance(field, CategoryField):
            right = predicted.argmax(axis=1) == responses.argmax(axis=1)
            return {"measure": "accuracy", "value": float(right.mean()), "rows": len(right)}
        if isinstance(field, BooleanField):
            right = (predicted[:, 0] > 0.5) == (responses[:, 0] > 0.5)
            return {"measure": "accuracy", "value": float(right.mean()), "rows": len(right)}
        off = float(np.square(predicted - responses).mean())
        scatter = float(responses.var())
        return {"measure": "r2", "value": 1 - off / scatter if scatter else 0.0, "rows": len(responses)}
