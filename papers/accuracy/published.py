"""What others published for the same data at about the same budget, each with its unit of privacy."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Published:
    """One figure: for whom it is private (`unit`), at which epsilon and delta, on which set, and by whom."""

    data_set: str
    unit: str
    epsilon: float
    delta: float
    accuracy: float
    source: str


_TRAMER = "Tramer and Boneh 2021"
_DE = "De et al. 2022"

FIGURES = (
    *(
        Published(data_set=name, unit="record", epsilon=3.0, delta=1e-5, accuracy=accuracy, source=f"{_TRAMER}, {how}")
        for how, figures in (
            ("linear on scattering", {"mnist": 0.987, "fashion": 0.897, "cifar10": 0.670}),
            ("network on scattering", {"mnist": 0.987, "fashion": 0.900, "cifar10": 0.693}),
            ("end to end", {"mnist": 0.981, "fashion": 0.860, "cifar10": 0.592}),
        )
        for name, accuracy in figures.items()
    ),
    *(
        Published(data_set="cifar10", unit="record", epsilon=epsilon, delta=1e-5, accuracy=accuracy, source=_DE)
        for epsilon, accuracy in ((1.0, 0.568), (2.0, 0.649), (3.0, 0.707), (8.0, 0.814))
    ),
    *(
        Published(
            data_set="mnist",
            unit="client",
            epsilon=8.0,
            delta=delta,
            accuracy=accuracy,
            source=f"Geyer, Klein and Nabi 2017, {clients:,} clients",
        )
        for clients, delta, accuracy in ((100, 1e-3, 0.78), (1000, 1e-5, 0.92), (10_000, 1e-6, 0.96))
    ),
)


def published(data_set: str, *, unit: str, epsilon: float, delta: float) -> list[Published]:
    """The figures for this set, unit and promise."""
    return [
        one for one in FIGURES if (one.data_set, one.unit, one.epsilon, one.delta) == (data_set, unit, epsilon, delta)
    ]
