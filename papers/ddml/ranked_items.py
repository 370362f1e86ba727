"""A made-up world to rank in: items with tags, texts of a few words, and what people chose.

A text is about one hidden topic, which its words hint at; whoever wrote it likes some tags more than others. The model
sees words and tags alone, as fields of a specification: words have a weight with each tag, and pairs of words
fall into buckets that do.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csr_array, hstack

from harness import checks
from harness.arrays import Floats, Integers
from incrowd import ConfigError, SeededRandomness, Specification
from incrowd.types import Stream

TAGS_OF_ITEM = 3
WORDS_OF_TEXT = 4
_TOPICS = 20
_LIKING = 1.5
_HINT = 3.0


@dataclass(frozen=True, kw_only=True)
class World:
    """So many items, tags and words, and buckets for pairs of words. The defaults are about the paper's sizes.

    Edge cases: fewer tags than an item has are refused.
    """

    items: int = 7_000
    tags: int = 100
    words: int = 400
    buckets: int = 98
    seed: int = 1

    def __post_init__(self) -> None:
        checks.count(items=self.items, tags=self.tags, words=self.words, buckets=self.buckets)
        if self.tags < TAGS_OF_ITEM:
            remedy = f"an item has {TAGS_OF_ITEM}: give as many at least"
            raise ConfigError(field="tags", value=self.tags, remedy=remedy)

    @classmethod
    def of_size(cls, weights: int, *, items: int, seed: int) -> "World":
        """One whose model has about so many weights, of words and of pairs of words as in the paper's sizes.

        Edge cases: fewer than one of each, for each tag, are refused.
        """
        usual = cls()
        inputs = (weights - 1 - usual.tags) // usual.tags
        words = round(inputs * usual.words / (usual.words + usual.buckets))
        if min(words, inputs - words) < 1:
            least = 1 + 7 * usual.tags
            raise ConfigError(field="weights", value=weights, remedy=f"give at least {least}")
        return cls(items=items, words=words, buckets=inputs - words, seed=seed)

    @cached_property
    def specification(self) -> Specification:
        """A logistic model of the columns ``chosen``, ``text`` and ``tags``, with the paper's epsilon."""
        text: dict[str, object] = {"column": "text"}
        words = {"type": "list", "levels": [f"w{word}" for word in range(self.words)], "separator": " ", **text}
        pairs = {"type": "text", "shortest": 2, "longest": 2, "buckets": self.buckets, **text}
        tags = {"type": "list", "levels": [f"t{tag}" for tag in range(self.tags)], "most": TAGS_OF_ITEM}
        return Specification.of(
            {
                "name": "ranking",
                "fields": {"chosen": {"type": "boolean"}, "words": words, "pairs": pairs, "tags": tags},
                "response": "chosen",
                "terms": [["tags"], ["words", "tags"], ["pairs", "tags"]],
                "link": "logistic",
                "gamma": 1.0,
                "clip": 0.005,
                "epsilon": math.log(32),
                "privacy": "feature",
            }
        )

    @property
    def weights(self) -> int:
        """How many weights the model has."""
        return self.specification.size

    @cached_property
    def tags_of(self) -> Integers:
        """The tags of each item, [items, 3]."""
        places = self._stream("tags").bits(self.items * self.tags).reshape(self.items, self.tags)
        return np.argsort(places, axis=1)[:, :TAGS_OF_ITEM]

    @cached_property
    def likings(self) -> Floats:
        """How much those who write about a topic like each item, [topics, items]. Nobody but them knows."""
        by_tag = _LIKING * self._stream("likings").normals(_TOPICS * self.tags).reshape(_TOPICS, self.tags)
        liked: Floats = by_tag[:, self.tags_of].sum(axis=2)
        return liked

    def texts(self, count: int, stream: Stream) -> tuple[Integers, Integers]:
        """The words of so many texts, [texts, 4], and the topic of each."""
        topics = (stream.bits(count) % np.uint64(_TOPICS)).astype(np.int64)
        words = _chosen(self._hints, np.repeat(topics, WORDS_OF_TEXT), stream)
        return words.reshape(count, WORDS_OF_TEXT), topics

    def choices(self, topics: Integers, stream: Stream) -> Integers:
        """The item that the writer of each text chose: the more it is liked, the more often."""
        return _chosen(self.likings, topics, stream)

    def table(self, words: Integers, items: Integers) -> dict[str, list[str]]:
        """A text and an item a row, as an app would keep them."""
        return {"text": self._written(words), "tags": [self._tags_written[item] for item in items.tolist()]}

    def features(self, words: Integers, items: Integers) -> csr_array:
        """What a device computes of a text and an item each."""
        return self.specification.features(self.table(words, items), count=len(words))

    def scores(self, weights: Floats, words: Integers) -> Floats:
        """What the model gives every item for each text, [texts, items], but for the intercept."""
        texts = self._written(words)
        inputs = hstack([self.specification.fields[name].encode(texts) for name in ("words", "pairs")], format="csr")
        crosses = weights[1 + self.tags :].reshape(-1, self.tags)
        scores: Floats = (inputs @ crosses + weights[1 : 1 + self.tags])[:, self.tags_of].sum(axis=2)
        return scores

    @cached_property
    def _hints(self) -> Floats:
        return _HINT * self._stream("hints").normals(_TOPICS * self.words).reshape(_TOPICS, self.words)

    @cached_property
    def _tags_written(self) -> list[str]:
        return [",".join(f"t{tag}" for tag in tags) for tags in self.tags_of.tolist()]

    def _written(self, words: Integers) -> list[str]:
        return [" ".join(f"w{word}" for word in text) for text in words.tolist()]

    def _stream(self, purpose: str) -> Stream:
        return SeededRandomness(self.seed).stream(f"world: {purpose}")


def _chosen(preferences: Floats, rows: Integers, stream: Stream) -> Integers:
    """A column for each of these rows, with a probability proportional to the exponential of the preference."""
    chances = np.exp(preferences - preferences.max(axis=1, keepdims=True)).cumsum(axis=1)
    chances /= chances[:, -1:]
    steps = (chances + np.arange(len(chances))[:, None]).ravel()  # one row after the other, each a whole number higher
    places = np.searchsorted(steps, rows + stream.bits(len(rows)) / 2.0**64, side="right")
    chosen: Integers = np.clip(places - rows * chances.shape[1], 0, chances.shape[1] - 1)
    return chosen
