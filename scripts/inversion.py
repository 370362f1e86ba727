"""Make the pictures of docs/audit.md, what a curious server reads out of an update: `python -m scripts.inversion`.

Simulations of the embedded digits: 100 clients, a softmax regression or a perceptron on pixels, the first of five
rounds.
"""

from collections.abc import Mapping

from incrowd.audit import reading
from incrowd.audit.finding import Strip
from incrowd.audit.inversion import Fired, Inverted, fired, inverted
from incrowd.runs.client_work import ClientWork, assemble
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
    strips = [
        Strip(title="the client's digits", pictures=central.originals),
        Strip(title=f"its update, without noise: {central.alike[0]:.2f}", pictures=central.from_update),
        Strip(title=f"its update, with noise of its own: {local.alike[0]:.2f}", pictures=local.from_update),
        Strip(title=f"the released mean of 100 clients: {central.alike[1]:.2f}", pictures=central.from_release),
    ]
    reading.draw(ROOT / "docs/_static" / name, strips)
    for strip in strips:
        print(strip.title)


if __name__ == "__main__":
    regression()
    perceptron()
