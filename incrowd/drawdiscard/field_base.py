"""What all fields of a specification have in common."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from incrowd._random import Floats
from incrowd.drawdiscard.sparse import SparseRows

STRICT = ConfigDict(strict=True, frozen=True, extra="forbid")
LONGEST_NAME = 64
MOST_LEVELS = 10_000
MOST_BUCKETS = 1_000_000

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=LONGEST_NAME)]
Level = Annotated[str, Field(max_length=200)]
Levels = Annotated[tuple[Level, ...], Field(min_length=1, max_length=MOST_LEVELS)]
Buckets = Annotated[int, Field(ge=1, le=MOST_BUCKETS)]


class AnyTableField(BaseModel):
    """How the values of a column become features, each within [0, 1].

    `column` is the column of the table that is read, if it is not called as the field is: so several fields may look at
    one column, and columns may have any name.
    """

    model_config = STRICT
    column: Annotated[str, Field(min_length=1, max_length=200)] | None = None

    @property
    @abstractmethod
    def endings(self) -> Sequence[str] | int:
        """What follows the field's name in the names of its features; a number for so many buckets."""

    @property
    def width(self) -> int:
        """How many features it has; known without making any."""
        return self.endings if isinstance(self.endings, int) else len(self.endings)

    def columns(self, name: str) -> tuple[str, ...]:
        """The names of its features."""
        endings = self.endings
        return tuple(f"{name}{ending}" for ending in (_numbered(endings) if isinstance(endings, int) else endings))

    @abstractmethod
    def sparse(self, values: Sequence[object]) -> SparseRows:
        """Its features, a row a value."""

    def encode(self, values: Sequence[object]) -> Floats:
        """Its features, a row a value, zeros and all."""
        return self.sparse(values).dense()

    @abstractmethod
    def misfit(self, value: object) -> str | None:
        """Why a value that is there does not count as what it is, for the owner of the table; None where it does."""


def of_levels(levels: Sequence[str]) -> list[str]:
    """The endings of a feature for each level."""
    return [f"={level}" for level in levels]


def _numbered(buckets: int) -> Iterator[str]:
    return (f"#{bucket}" for bucket in range(buckets))
