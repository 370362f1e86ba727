"""One question to 100 clients, answered privately: the average picture of each digit.

Every client adds up its own images, one picture a digit. The server learns the noised mean over all clients and
nothing else; whoever holds the answer can read handwriting with it. Run: python examples/private_mean.py
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from incrowd import Budget, Everyone, Ledger, NormalisedClip, PlanConfig, PrivateRun, SystemRandomness, constant
from incrowd.data import Clients, iid, load_digits
from incrowd.privacy.ledger import DataIdentity

CLIENTS, PIXELS, DIGITS = 100, 64, 10
BUDGET = Budget(epsilon=8.0, delta=1e-3)
OUT = Path("out/private-mean")

Array = NDArray[np.float64]


def the_clients() -> Clients:
    """Real handwritten digits (8 x 8 pixels), divided among 100 clients."""
    split = load_digits()
    partition = iid(split.train.labels, clients=CLIENTS, randomness=SystemRandomness())
    return Clients.of(split, partition)


def contribution(images: Array, labels: NDArray[np.generic]) -> Array:
    """What one client sends: its images, centred, added up a digit at a time, as one vector."""
    centred = images - images.mean(axis=1, keepdims=True)
    return np.concatenate([centred[labels == digit].sum(axis=0) for digit in range(DIGITS)])


def accuracy(pictures: Array, images: Array, labels: NDArray[np.generic]) -> float:
    """How often the picture that an image resembles most is that of its digit."""
    directions = pictures / np.linalg.norm(pictures, axis=1, keepdims=True)
    return float(np.mean(np.argmax(images @ directions.T, axis=1) == labels))


def main() -> None:
    """Plan, ask, and show what came back."""
    data = the_clients()
    config = PlanConfig(
        members=CLIENTS, schedule=constant(rounds=1, cohort=CLIENTS), sampling=Everyone, clip=NormalisedClip()
    )
    plan = config.calibrate(BUDGET)
    OUT.mkdir(parents=True, exist_ok=True)
    # The digits are public, and every run asks clients that were divided afresh: so each has a ledger of its own.
    place = OUT / f"ledger-{len(list(OUT.glob('ledger-*.sqlite'))) + 1}.sqlite"
    identity = DataIdentity(name="digits, divided afresh", public=True)
    with Ledger.open(place, budget=BUDGET, relation=plan.relation, data_identity=identity) as ledger:
        run = PrivateRun(plan, ledger=ledger, randomness=SystemRandomness(), size=DIGITS * PIXELS)
        asked = run.round(0)
        exact = np.zeros(DIGITS * PIXELS)
        for client in run.cohort(0):
            mine = data.client(int(client))
            images = data.examples.values(mine).reshape(len(mine), -1).astype(np.float64)
            asked.add(contribution(images, data.examples.labels[mine]), clients=[int(client)])
            exact += contribution(images, data.examples.labels[mine])
        pictures = asked.release().mean.reshape(DIGITS, PIXELS)
        statement = run.statement()

    show(plan.noise_multiplier, statement.epsilon, pictures, exact.reshape(DIGITS, PIXELS), data)
    print(statement.text())


def show(noise: float, epsilon: float, pictures: Array, exact: Array, data: Clients) -> None:
    """The table and the picture. The exact answer is shown for comparison only: a real server never has it."""
    if data.test is None:
        raise SystemExit("the embedded digits come with test images")
    images = data.test.values(slice(None)).reshape(len(data.test), -1).astype(np.float64)
    rows = [
        ("clients", f"{CLIENTS}"),
        ("numbers released", f"{DIGITS * PIXELS}"),
        ("noise multiplier", f"{noise:.4f}"),
        ("epsilon spent", f"{epsilon:.4f} of {BUDGET.epsilon:g}"),
        ("test accuracy, private", f"{accuracy(pictures, images, data.test.labels):.3f}"),
        ("test accuracy, without privacy", f"{accuracy(exact, images, data.test.labels):.3f}"),
    ]
    for name, value in rows:
        print(f"{name:32} {value}")
    picture = OUT / "pictures.png"
    figure = Figure(figsize=(5.5, 1.6), layout="constrained")
    panel = figure.subplots()
    above, below = (np.hstack(list(side.reshape(DIGITS, 8, 8))) / np.abs(side).max() for side in (exact, pictures))
    panel.imshow(np.vstack([above, np.full((1, DIGITS * 8), -0.5), below]), cmap="gray")
    panel.set_title("above: exact, below: what was released")
    panel.set_axis_off()
    figure.savefig(picture, dpi=150)
    print(f"{'picture':32} {picture}\n")


if __name__ == "__main__":
    main()
