"""Labelled texts, say addresses of web pages, for models that make their own features of them."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from incrowd import _validate
from incrowd.data._rows import read_rows
from incrowd.errors import DataError


@dataclass(frozen=True, kw_only=True, eq=False)
class Texts:
    """Texts and a label in 0 .. classes - 1 for each."""

    texts: tuple[str, ...] = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    classes: int

    def __len__(self) -> int:
        return len(self.texts)


def load_texts(path: Path | str, *, text: str = "text", label: str = "label", classes: int = 2) -> Texts:
    """The texts of a table (.csv, .csv.gz or .parquet), say ``load_texts("phishing/urls.csv.gz", text="url")``.

    Edge cases: a missing column, a label that is not in 0 .. classes - 1, no rows: `DataError`, which names file and
    line.
    """
    _validate.count(classes=classes)
    table = read_rows(Path(path))
    text_at, label_at = table.column(text), table.column(label)
    numbers = {str(number): number for number in range(classes)}
    texts, labels = [], []
    for place, cells in table.rows:
        if str(cells[label_at]) not in numbers:
            raise DataError(
                f"{table.place(place)}: {label} = {cells[label_at]!r}; give a whole number from 0 to {classes - 1}"
            )
        labels.append(numbers[str(cells[label_at])])
        texts.append(str(cells[text_at]))
    if not texts:
        raise DataError(f"{path}: has a header and no rows; give at least one")
    return Texts(texts=tuple(texts), labels=np.array(labels, np.int64), classes=classes)
