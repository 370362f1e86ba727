"""What devices have learnt together: weights that know the names of their features, and predict."""

from dataclasses import dataclass

import numpy as np

from incrowd._random import Floats
from incrowd.drawdiscard.fields import CategoryField
from incrowd.drawdiscard.source import rows_of
from incrowd.drawdiscard.specification import Specification


@dataclass(frozen=True, eq=False)
class Predictor:
    """A specification and weights for it.

    Guarantee: rows become features as they do on a device, by the public ranges and levels of the specification.

    Edge cases: a value that is missing, or is no listed level, counts as none; one beyond a range as its end.
    """

    specification: Specification
    weights: Floats

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features: ``field``, ``field=level``, or two of these with a colon."""
        return self.specification.columns

    @property
    def levels(self) -> tuple[str, ...]:
        """The classes, in the order of the columns of a prediction; none where the response is a number."""
        response = self.specification.predicted
        return response.levels if isinstance(response, CategoryField) else ()

    def predict(self, rows: object) -> Floats:
        """A prediction a row, for a list of dicts, a dict of columns, or a data frame.

        It is in the response's own units; of a boolean the chance of yes; of a category the chance of each level, a
        column each.

        Edge cases: a column that a feature needs and that is not there is refused by its name (`DataError`).
        """
        source, needed = rows_of(rows), self.specification.names[1:]
        here = [name for name in needed if name in source.columns]
        table = source.read(here) if source.count else {name: [] for name in needed}
        features = self.specification.features(table, count=source.count)
        predicted: Floats = np.asarray(self.specification.model.predict(self.weights, features), np.float64)
        response = self.specification.predicted
        if isinstance(response, CategoryField):
            return predicted
        low, high = response.span
        return low + predicted[:, 0] * (high - low)
