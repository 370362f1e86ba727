"""Declared numbers of clients and records: public, and never counted.

A count reveals a single member: a probability, a number of steps or a line of a report that follows the count differs
for a neighbouring data set. So everything public is made of the declared number. The owner compares it with the data
once, before anything is spent.
"""

from incrowd.errors import ConfigError


def fewest(declared: int) -> int:
    """The fewest that a declared number allows, nine tenths of it; the most is the number itself.

    Guarantee: a number that was rounded up to two digits is within it.
    """
    return -(-9 * declared // 10)


def check_declared(declared: int, *, held: int, field: str, what: str) -> None:
    """Refuse a declared number that is not what it is declared for.

    Guarantee: the refusal does not say how many there are, nor whether they are too few or too many. Data sets between
    `fewest` and the declared number are treated alike.

    Edge cases: the refusal itself depends on private data: it is for their owner, and comes before anything is spent.
    """
    if not fewest(declared) <= held <= declared:
        raise ConfigError(
            field=field,
            value=declared,
            remedy=f"{what} are fewer or more than that allows, which is from {fewest(declared)} to {declared}; how "
            "many is for their owner alone to see: declare a number that they never exceed, rounded up to two digits",
        )


def check_planned(planned: int, *, clients: int) -> None:
    """Refuse a plan for another number of clients than the public one of those who would follow it.

    Their probability of taking part would be another one than the plan was priced for, or some could never take part.
    """
    if planned != clients:
        remedy = f"that is what the plan is for, and the federation has {clients}: plan for {clients}"
        raise ConfigError(field="clients", value=planned, remedy=remedy)
