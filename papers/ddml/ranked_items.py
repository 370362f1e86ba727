"""A made-up world to rank in: items with tags, texts of a few words, and what people chose.

A text is about one hidden topic, which its words hint at; whoever wrote it likes some tags more than others. The model
sees words and tags alone: n-grams of the text, crossed with the tags of an item, each cross a weight. Words themselves
have a weight with each tag; pairs and triples of words share the rest, by a hash that is public.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness import checks
from harness.arrays import Floats, Integers
from incrowd import ConfigError, SeededRandomness, Stream

TAGS_OF_ITEM = 3
WORDS_OF_TEXT = 4
NGRAMS = 2 * WORDS_OF_TEXT - 3 + WORDS_OF_TEXT  # one by one, in pairs, in triples
_TOPICS = 20
_LIKING = 1.5
_HINT = 3.0
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True)
class World:
    """So many items, tags and words; a model of so many weights. The defaults are about the paper's sizes.

    Edge cases: fewer weights than an intercept, the tags, every word with every tag and one more: refused.
    """

    items: int = 7_000
    tags: int = 100
    words: int = 400
    weights: int = 50_000
    seed: int = 1

    def __post_init__(self) -> None:
        checks.count(items=self.items, tags=self.tags, words=self.words, weights=self.weights)
        if self.tags < TAGS_OF_ITEM:
            remedy = f"an item has {TAGS_OF_ITEM}: give as many at least"
            raise ConfigError(field="tags", value=self.tags, remedy=remedy)
        if self.shared < 1:
            raise ConfigError(
                field="weights", value=self.weights, remedy=f"give more than {self.weights - self.shared}"
            )

    @property
    def shared(self) -> int:
        """How many weights the crosses of pairs and triples of words share."""
        return self.weights - 1 - self.tags - self.tags * self.words

    @property
    def active(self) -> int:
        """How many features of a text and an item are not zero: the intercept, tags and crosses."""
        return 1 + TAGS_OF_ITEM * (1 + NGRAMS)

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

    def places(self, words: Integers, items: Integers) -> NDArray[np.int32]:
        """Which weights a text and an item have to do with, [pairs, active]."""
        tags = self.tags_of[items]
        crosses = self._crosses(words)[np.arange(len(words))[:, None], tags]
        own = np.zeros((len(words), 1), np.int64)
        return np.concatenate([own, 1 + tags, crosses.reshape(len(words), -1)], axis=1).astype(np.int32)

    def scores(self, weights: Floats, words: Integers) -> Floats:
        """What the model gives every item for each text, [texts, items]."""
        by_tag = weights[self._crosses(words)].sum(axis=2) + weights[1 : 1 + self.tags]
        scores: Floats = by_tag[:, self.tags_of].sum(axis=2)
        return scores

    @cached_property
    def _hints(self) -> Floats:
        return _HINT * self._stream("hints").normals(_TOPICS * self.words).reshape(_TOPICS, self.words)

    def _crosses(self, words: Integers) -> Integers:
        """The weight of each n-gram of a text with each tag, [texts, tags, n-grams]."""
        tags = np.arange(self.tags)
        alone = 1 + self.tags + words[:, None, :] * self.tags + tags[:, None]
        several = [words[:, :-1] * self.words + words[:, 1:]]
        several.append((several[0][:, :-1] * self.words + words[:, 2:]) + self.words**2)
        ngrams = np.concatenate(several, axis=1)[:, None, :] * self.tags + tags[:, None]
        hashed = (_mixed(ngrams) % np.uint64(self.shared)).astype(np.int64)
        return np.concatenate([alone, self.weights - self.shared + hashed], axis=2)

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


def _mixed(numbers: Integers) -> NDArray[np.uint64]:
    """A public hash of whole numbers (the finaliser of SplitMix64)."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * _ODD
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
