"""URLs with a label each, 1 for phishing, and a split of them that no host is on both sides of."""

import hashlib
import html
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness import checks
from incrowd import ConfigError, DataError
from incrowd.data import read_rows
from papers.ddml.url_features import host_of

PLACE = Path("phishing") / "urls.csv.gz"
_COLUMNS = ["label", "url"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Urls:
    """URLs, and which of them are phishing."""

    texts: tuple[str, ...]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.texts)

    def where(self, chosen: NDArray[np.bool_]) -> "Urls":
        """Those that were chosen, in their order."""
        kept = tuple(text for text, keep in zip(self.texts, chosen.tolist(), strict=True) if keep)
        return Urls(texts=kept, labels=self.labels[chosen])


def load_urls(folder: Path) -> Urls:
    """The URLs of ``phishing/urls.csv.gz`` in this folder: columns ``label`` (0 or 1) and ``url``.

    What a page escaped (``&amp;``) is read as it was meant: how it was found should not tell what it is.

    Edge cases: a file that is missing is refused (`ConfigError`), and so is one with other columns, another label or a
    single kind of label (`DataError`).
    """
    path = folder / PLACE
    if not path.is_file():
        remedy = f"put a table with the columns {','.join(_COLUMNS)} at {PLACE} in the data folder"
        raise ConfigError(field="data", value=str(folder), remedy=remedy)
    table = read_rows(path)
    rows = [cells for _, cells in table.rows]
    if list(table.header) != _COLUMNS or any(row[0] not in ("0", "1") for row in rows):
        raise DataError(f"{path} is not a table of {','.join(_COLUMNS)} with labels 0 and 1")
    labels = np.array([int(label) for label, _ in rows], np.int64)
    if len(np.unique(labels)) < 2:
        raise DataError(f"{path} holds {len(labels)} URLs, and not both kinds")
    return Urls(texts=tuple(html.unescape(url).strip() for _, url in rows), labels=labels)


def split_by_host(urls: Urls, *, held_out: float, seed: int) -> tuple[Urls, Urls]:
    """Those to learn from, and about this share of the hosts with all of their URLs.

    Guarantee: no host is on both sides; the same host, share and seed give the same side, whatever else there is.
    """
    checks.fraction(held_out=held_out)
    side = np.array([_place(host_of(text), seed) < held_out for text in urls.texts], bool)
    return urls.where(~side), urls.where(side)


def _place(host: str, seed: int) -> float:
    """A number in [0, 1) of its own for each host."""
    digest = hashlib.sha256(f"{seed}:{host}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
