"""Fields that look at text, or at lists: hashed n-grams, hashed levels, several levels at once, words, and counts.

| type     | features                            | a value                                                       |
| -------- | ----------------------------------- | ------------------------------------------------------------- |
| `text`   | a bucket each                       | its n-grams there, at most `most` of them, divided by `most`  |
| `hashed` | a bucket each                       | 1 in the bucket of its text                                   |
| `list`   | a level each, or a bucket each      | 1 for each of its items                                       |
| `words`  | a word each, or one for all (`any`) | 1 where the word is in the text                               |
| `count`  | one, or each of `characters`        | how many there are, at most `most`, divided by `most`         |
| `count`  | one for each of `steps`             | 1 where there are so many at least                            |

What a text is, its parts, words and buckets: see `texts`. What is missing, or no text, has no feature at all.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from incrowd.drawdiscard.field_base import AnyTableField, Buckets, Levels, of_levels
from incrowd.drawdiscard.sparse import SparseRows
from incrowd.drawdiscard.texts import LONGEST_TEXT, UrlPart, buckets_of, ngrams, part_of, text_of, words_of
from incrowd.errors import ConfigError

_BLANKS = " \t\n\r\f\v"

Most = Annotated[int, Field(ge=1, le=1_000_000)]


class HashedField(AnyTableField):
    """A level that need not be listed: its text falls into one of so many buckets.

    Edge cases: two levels may share a bucket; whole numbers count by their digits, 7.0 as 7; other numbers are no
    level.
    """

    type: Literal["hashed"] = "hashed"
    buckets: Buckets

    @property
    def endings(self) -> int:
        """See `AnyTableField.endings`."""
        return self.buckets

    def sparse(self, values: Sequence[object]) -> SparseRows:
        """See `AnyTableField.sparse`."""
        texts = [text_of(value) for value in values]
        return _hashed([[] if text is None else [text] for text in texts], self.buckets)

    def misfit(self, value: object) -> str | None:
        """See `AnyTableField.misfit`."""
        return "is no text" if text_of(value) is None else None


class ListField(AnyTableField):
    """Several levels at once: a list, or text that `separator` divides; a feature each of `levels`, or so many buckets.

    Of the items (levels, if they are listed) the first `most` different ones count.

    Edge cases: blanks around an item and empty items do not count, and an item that is no level does not; of a text the
    first 4,000 characters are read; a whole number is a list of one; a value that is no text and no list has no item.
    """

    type: Literal["list"] = "list"
    levels: Levels | None = None
    buckets: Buckets | None = None
    separator: Annotated[str, Field(min_length=1, max_length=10)] = ","
    most: Most = 16

    @model_validator(mode="after")
    def _check(self) -> "ListField":
        if (self.levels is None) == (self.buckets is None):
            raise ConfigError(field="levels", value=self.levels, remedy="give either levels or a number of buckets")
        if self.levels is not None and len(set(self.levels)) != len(self.levels):
            raise ConfigError(field="levels", value=self.levels, remedy="give each level once")
        return self

    @property
    def endings(self) -> Sequence[str] | int:
        """See `AnyTableField.endings`."""
        return (self.buckets or 0) if self.levels is None else of_levels(self.levels)

    def sparse(self, values: Sequence[object]) -> SparseRows:
        """See `AnyTableField.sparse`."""
        if self.levels is None:
            return _hashed([self._items(value)[: self.most] for value in values], self.width)
        places = {level: place for place, level in enumerate(self.levels)}
        found = [[places[item] for item in self._items(value) if item in places][: self.most] for value in values]
        return SparseRows.ones(found, self.width)

    def misfit(self, value: object) -> str | None:
        """See `AnyTableField.misfit`."""
        if not isinstance(value, list | tuple) and text_of(value) is None:
            return "is no text and no list"
        items = self._items(value)
        if self.levels is not None and not set(items) <= set(self.levels):
            return "holds what is none of the levels"
        if len(items) > self.most:
            return f"holds more than {self.most} items, of which the first count"
        return _too_long(value)

    def _items(self, value: object) -> list[str]:
        """The different items, in their order."""
        if isinstance(value, list | tuple):
            texts = [text_of(item) for item in value]
        else:
            texts = list((text_of(value) or "")[:LONGEST_TEXT].split(self.separator))
        stripped = [text.strip(_BLANKS) for text in texts if text is not None]
        return list(dict.fromkeys(text for text in stripped if text))


class PartField(AnyTableField):
    """A field that looks at text, or at a part of it as of a URL, in small letters unless `lower` is false."""

    part: UrlPart = "all"
    lower: bool = True

    def misfit(self, value: object) -> str | None:
        """See `AnyTableField.misfit`."""
        return "is no text" if text_of(value) is None else _too_long(value)

    def _texts(self, values: Sequence[object]) -> list[str | None]:
        return [part_of(value, part=self.part, lower=self.lower) for value in values]


class TextField(PartField):
    """Text by its n-grams of words or characters, in so many buckets.

    Edge cases: a text of fewer than `shortest` units has no n-gram, and so no feature.
    """

    type: Literal["text"] = "text"
    buckets: Buckets
    units: Literal["words", "characters"] = "words"
    shortest: Annotated[int, Field(ge=1, le=20)] = 1
    longest: Annotated[int, Field(ge=1, le=20)] = 1
    most: Most = 1

    @model_validator(mode="after")
    def _check(self) -> "TextField":
        if self.longest < self.shortest:
            raise ConfigError(field="longest", value=self.longest, remedy=f"at least the shortest, {self.shortest}")
        return self

    @property
    def endings(self) -> int:
        """See `AnyTableField.endings`."""
        return self.buckets

    def sparse(self, values: Sequence[object]) -> SparseRows:
        """See `AnyTableField.sparse`."""
        return _hashed([self._ngrams(text) for text in self._texts(values)], self.buckets, most=self.most)

    def _ngrams(self, text: str | None) -> list[str]:
        words = self.units == "words"
        units: Sequence[str] = words_of(text or "") if words else text or ""
        return ngrams(units, shortest=self.shortest, longest=self.longest, between=" " if words else "")


class WordsField(PartField):
    """Which of these words are in a text: anywhere, at its start, at its end, or as the whole of it.

    Edge cases: a word that has a capital letter is never in a text in small letters, and is refused unless `lower` is
    false.
    """

    type: Literal["words"] = "words"
    words: Levels
    where: Literal["anywhere", "start", "end", "whole"] = "anywhere"
    any: bool = False

    @model_validator(mode="after")
    def _check(self) -> "WordsField":
        if len(set(self.words)) != len(self.words) or "" in self.words:
            raise ConfigError(field="words", value=self.words, remedy="give each word once, and no empty one")
        _check_small("words", "".join(self.words), lower=self.lower)
        return self

    @property
    def endings(self) -> Sequence[str]:
        """See `AnyTableField.endings`."""
        return [""] if self.any else of_levels(self.words)

    def sparse(self, values: Sequence[object]) -> SparseRows:
        """See `AnyTableField.sparse`."""
        found = [
            [place for place, word in enumerate(self.words) if self._in(word, text)] for text in self._texts(values)
        ]
        return SparseRows.ones([[0] * bool(places) if self.any else places for places in found], self.width)

    def _in(self, word: str, text: str | None) -> bool:
        if text is None:
            return False
        if self.where == "anywhere":
            return word in text
        if self.where == "whole":
            return word == text
        return text.startswith(word) if self.where == "start" else text.endswith(word)


class CountField(PartField):
    """How many characters a text has; of `characters` only these, all together or `each`, or their `longest` run.

    Edge cases: `each` goes with `most` and with characters only; steps rise.
    """

    type: Literal["count"] = "count"
    characters: Annotated[str, Field(min_length=1, max_length=1_000)] | None = None
    each: bool = False
    run: bool = False
    most: Most | None = None
    steps: Annotated[tuple[Most, ...], Field(min_length=1, max_length=1_000)] | None = None

    @model_validator(mode="after")
    def _check(self) -> "CountField":
        if (self.most is None) == (self.steps is None):
            raise ConfigError(field="most", value=self.most, remedy="give either most or steps")
        if self.steps is not None and not all(lower < upper for lower, upper in pairwise(self.steps)):
            raise ConfigError(field="steps", value=self.steps, remedy="let each be larger than the one before")
        if self.each and (self.characters is None or self.steps is not None or self.run):
            raise ConfigError(
                field="each", value=True, remedy="it goes with characters and most, not with steps or run"
            )
        if self.characters is not None:
            if len(set(self.characters)) != len(self.characters):
                raise ConfigError(field="characters", value=self.characters, remedy="give each character once")
            _check_small("characters", self.characters, lower=self.lower)
        return self

    @property
    def endings(self) -> Sequence[str]:
        """See `AnyTableField.endings`."""
        if self.each:
            return of_levels(self.characters or "")
        return [""] if self.steps is None else [f">={step}" for step in self.steps]

    def sparse(self, values: Sequence[object]) -> SparseRows:
        """See `AnyTableField.sparse`."""
        return SparseRows.of([self._row("" if text is None else text) for text in self._texts(values)], self.width)

    def _row(self, text: str) -> dict[int, float]:
        if self.each:
            counts = [text.count(character) for character in self.characters or ""]
            return {place: self._share(count) for place, count in enumerate(counts) if count}
        count = self._count(text)
        if self.steps is not None:
            return {place: 1.0 for place, step in enumerate(self.steps) if count >= step}
        return {0: self._share(count)} if count else {}

    def _share(self, count: int) -> float:
        most = self.most or 1
        return min(count, most) / most

    def _count(self, text: str) -> int:
        if self.characters is None:
            return len(text)
        if not self.run:
            return sum(map(text.count, self.characters))
        return max(map(len, self._runs.findall(text)), default=0)

    @cached_property
    def _runs(self) -> re.Pattern[str]:
        return re.compile(f"[{re.escape(self.characters or '')}]+")


def _hashed(rows: Sequence[Sequence[str]], buckets: int, *, most: int = 1) -> SparseRows:
    """How many of the texts of a row fall into each bucket, at most so many, divided by that."""
    found = iter(buckets_of([text for row in rows for text in row], buckets).tolist())
    counts = [Counter(next(found) for _ in row) for row in rows]
    return SparseRows.of(
        [{place: min(count, most) / most for place, count in sorted(row.items())} for row in counts], buckets
    )


def _too_long(value: object) -> str | None:
    long = isinstance(value, str) and len(value) > LONGEST_TEXT
    return f"is longer than {LONGEST_TEXT} characters, of which the first count" if long else None


def _check_small(field: str, text: str, *, lower: bool) -> None:
    if lower and any("A" <= character <= "Z" for character in text):
        raise ConfigError(field=field, value=text[:200], remedy="write small letters, or set lower to false")
