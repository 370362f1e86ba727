"""Make the pictures of docs/audit.md, what a curious server reads out of an update: `python -m scripts.inversion`.

Simulations of the embedded digits: 100 clients, a softmax regression or a perceptron on pixels, the first of five
rounds.
"""

from collections.abc import Mapping

from incrowd._random import Floats
from incrowd.audit.inversion import Fired, Inverted, fired, inverted
from incrowd.runs.client_work import ClientWork, assemble
from incrowd.runs.plots import axes
from incrowd.runs.settings import parse
from scripts._common import ROOT

CLIENT, SEED = 3, 1


def federation(*, place: str, model: Mapping[str, object], rate: float) -> ClientWork:
    """One whose noise is added here or there."""
    config = parse(
        {
            "data": {"clients": 100},
            "model": model,
            "local": {"learning_rate": rate},
            "privacy": {"epsilon": 8.0, "delta": 1e-3, "rounds": 5, "place": place},
            "run": {"randomness": "seeded", "seed": SEED},
        }
    )
    work = assemble(config)
    if not isinstance(work, ClientWork):
        raise TypeError("these are settings of clients")
    return work


def regression() -> None:
    """The mean pictures of a client's classes."""
    linear = {"kind": "linear", "bias": False}
    central, local = (
        inverted(federation(place=place, model=linear, rate=1.0), client=CLIENT, seed=SEED)
        for place in ("central", "local")
    )
    draw("inversion.png", central, local)


def perceptron() -> None:
    """A client's pictures, one by one."""
    central, local = (
        fired(federation(place=place, model={"kind": "mlp"}, rate=0.1), client=CLIENT, other=CLIENT + 1, seed=SEED)
        for place in ("central", "local")
    )
    draw("inversion-perceptron.png", central, local)
    print(f"another client's update: {central.by_chance:.2f}")


def draw(name: str, central: Inverted | Fired, local: Inverted | Fired) -> None:
    """Rows of pictures, one below the other."""
    rows: list[tuple[str, Floats]] = [
        ("the client's digits", central.originals),
        (f"its update, without noise: {central.alike[0]:.2f}", central.from_update),
        (f"its update, with noise of its own: {local.alike[0]:.2f}", local.from_update),
        (f"the released mean of 100 clients: {central.alike[1]:.2f}", central.from_release),
    ]
    count = len(rows[0][1])
    with axes(ROOT / "docs/_static" / name, columns=1, rows=len(rows), height=min(1.0, 9 / count)) as places:
        for place, (title, pictures) in zip(places, rows, strict=True):
            scaled = [(one - one.min()) / max(float(one.max() - one.min()), 1e-12) for one in pictures]
            for column, picture in enumerate(scaled):
                place.imshow(picture, cmap="gray_r", extent=(1.1 * column, 1.1 * column + 1, 0, 1), vmin=0, vmax=1)
            place.set(xlim=(-0.05, 1.1 * count), ylim=(-0.02, 1.02), xticks=[], yticks=[])
            place.set_title(title, loc="left", fontsize=9)
            place.spines[:].set_visible(False)
    for title, _ in rows:
        print(title)


if __name__ == "__main__":
    regression()
    perceptron()
