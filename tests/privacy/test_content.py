"""What data are recognised by: the same rows otherwise are told, and rows that are equal by chance are not."""

import numpy as np
import pytest

from incrowd.privacy.content import KEPT, Content, Digests, Rows, digests, fingerprint, same, which

KEY, OTHER = b"k" * 32, b"o" * 32
ROWS = [b"ann", b"bob", b"bob", b"cat"]
OWNERS = np.array([0, 0, 1, 1])


def people(*, start: int = 0, count: int = 30, owners: int = 30, label: int = 0, key: bytes = KEY) -> Content:
    """Rows with a feature and a label, some of each owner."""
    whose = np.arange(count) % owners
    features = digests((b"%d" % (start + row) for row in range(count)), key=key)
    rows = digests((b"%d %d" % (start + row, label) for row in range(count)), key=key)
    return Content(
        whole=fingerprint(rows, whose, key=key),
        people=fingerprint(features, whose, key=key),
        kinds={"cells": Rows.of(rows, whose), "features": Rows.of(features, whose)},
    )


def seen(rows: list[bytes], owners: object = OWNERS, key: bytes = KEY) -> str:
    return fingerprint(digests(rows, key=key), np.asarray(owners)[: len(rows)], key=key)


def test_a_fingerprint_is_of_the_rows_of_each_owner_and_not_of_their_order() -> None:
    first = seen(ROWS)
    assert seen(ROWS[::-1]) == seen(ROWS[::-1], OWNERS[::-1]) == first
    for other in (ROWS[:-1], [b"ann", b"bob", b"cat"], [b"annbob", b"bob", b"bob", b"cat"], []):
        assert same(seen(other), first) is False
    assert same(seen(ROWS, [0, 1, 0, 1]), first) is True  # who is who is no matter
    assert same(seen(ROWS, [0, 1, 1, 0]), first) is False


def test_fingerprints_of_different_keys_are_not_compared() -> None:
    first, second = seen(ROWS), seen(ROWS, key=OTHER)
    assert first.startswith(which(KEY))
    assert same(first, second) is same(first, None) is same(None, None) is None
    assert first.partition(":")[2] != second.partition(":")[2]
    assert set(digests(ROWS, key=KEY)).isdisjoint(digests(ROWS, key=OTHER))


def drawn(values: int, count: int, seed: int, owners: int = 10**9) -> Rows:
    """Rows of so many values, each as likely as the others."""
    dice = np.random.default_rng(seed)
    rows = digests((b"%d" % value for value in dice.integers(0, values, count)), key=KEY)
    return Rows.of(rows, np.arange(count) % owners)


@pytest.mark.parametrize("values", [2, 50, 1000, 100_000, 10**12])
def test_rows_that_are_equal_by_chance_are_nobody_s(values: int) -> None:
    """Over a hundred pairs of tables: nobody is taken for somebody else."""
    for seed in range(100):
        one, other = drawn(values, 300, seed), drawn(values, 200, seed + 1000)
        assert not other.like(one.sample("cells"))
        assert not one.like(other.sample("cells"))
        assert values == 100_000 or not one.holds(other)


def taken(rows: Rows, part: slice) -> Digests:
    return np.random.default_rng(0).permutation(rows.each)[part]


def test_rows_of_others_are_told_one_by_one_where_none_are_equal() -> None:
    one, other = drawn(10**12, 5000, 0), drawn(10**12, 100, 1)
    mixed = np.concatenate([other.each, taken(one, slice(1))])
    assert one.holds(Rows.of(mixed, np.arange(101)))
    assert not one.holds(other)


def test_rows_of_others_are_told_where_they_are_more_than_chance() -> None:
    one, other = drawn(5000, 1000, 0), drawn(5000, 100, 1)
    mixed = np.concatenate([other.each[:50], taken(one, slice(50))])
    assert one.holds(Rows.of(mixed, np.arange(100)))
    assert not one.holds(other)
    few = drawn(4, 100, 0)
    assert few.holds(drawn(4, 100, 0))  # all of them, in the same numbers
    assert not few.holds(drawn(4, 99, 0))


@pytest.mark.parametrize("count", [40, 5000])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.2])
def test_a_part_is_told_from_a_sample(count: int, share: float) -> None:
    whole = drawn(10**12, count, 0)
    part = taken(whole, slice(int(share * count)))
    new = drawn(10**12, count, 1).each
    for rows in (part, np.concatenate([part, new[len(part) :]])):
        some = Rows.of(rows, np.arange(len(rows)))
        assert some.like(whole.sample("cells"))
        assert whole.like(some.sample("cells"))
    assert len(whole.sample("cells").digests) == min(count, KEPT)


def test_rows_that_a_person_has_twice_are_that_person_s() -> None:
    twice = Rows.of(np.repeat(digests(ROWS, key=KEY), 2), np.repeat([0, 1, 2, 3], 2))
    assert (len(twice.each), len(twice.own), twice.shared) == (4, 2, 0.5)


def test_nothing_is_like_nothing() -> None:
    few = drawn(2, 100, 0)
    assert len(few.own) == 0
    assert not few.like(few.sample("cells"))
    assert not people().like([])
    assert people().like(people(label=1).samples())
    assert people().holds(people(label=1, count=1))
    assert not people().holds(people(start=100))
