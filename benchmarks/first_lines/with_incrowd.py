"""The task with incrowd: the accountant, the ledger, going on after a crash and the statement are part of it."""

import incrowd
from first_lines.task import CLASSES, COHORT, DELTA, EPSILON, OWNER, RATE, ROUNDS, TEST, X, Y, network


def main(folder: str) -> float:
    """Train, and say how good it is."""
    data = incrowd.Clients.from_arrays(X, Y, owner=OWNER, classes=CLASSES, test=TEST, public=True)
    federation = incrowd.Federation(
        network(),
        data,
        local=incrowd.Local(learning_rate=RATE, batch_size=10),
        privacy=incrowd.Private(epsilon=EPSILON, delta=DELTA, rounds=ROUNDS, cohort=COHORT, sampling="poisson"),
    )
    return federation.train(folder).accuracy or 0.0
