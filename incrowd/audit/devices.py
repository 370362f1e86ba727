"""What an audit of a draw-and-discard specification looks at: one contribution."""

from collections.abc import Iterator

import numpy as np

from incrowd._random import SeededRandomness
from incrowd.audit.checks import size_of_noise
from incrowd.audit.device_plays import DeviceGame, DevicePlay
from incrowd.audit.direction_plays import direction_looks
from incrowd.audit.finding import Check, Claim, Finding, bounded
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import IncrowdError

_LAPLACE_KURTOSIS = 6.0


def audit_specification(asked: Specification, *, trials: int, seed: int) -> tuple[list[Finding], list[Check]]:
    """Attack one contribution of a device that answers a specification.

    Guarantee: gradients and ledgers are made up; no ledger of anybody is opened.

    Edge cases: a specification without noise is a `ConfigError`; a contribution that is refused fails the audit.
    Of directions one contribution is attacked, with knowledge of all directions that the device tossed.
    """
    if asked.noise == "direction":
        finding, looks = direction_looks(asked, trials=trials, seed=seed)
        return [finding], looks
    game = DeviceGame(specification=asked)
    try:
        play = game.play(seed, trials)
    except IncrowdError as error:
        refused = Check(name="a contribution", measured=f"refused: {error}", stated="works", holds=False)
        return [], [refused, *_price(game)]
    return [_finding(game, play)], contribution_checks(game, play)


def _finding(game: DeviceGame, play: DevicePlay) -> Finding:
    gaussian = game.mechanism.noise == "gaussian"
    each = "a number of one contribution" if game.mechanism.privacy == "feature" else "one contribution"
    return bounded(
        Claim(unit="contribution", epsilon=game.claimed, delta=game.delta, gaussian=gaussian),
        play.scores[play.inside],
        play.scores[~play.inside],
        attack=f"two tables, as unlike as can be, told apart by {each}",
        note="the server, who draws, and who listens on the way see this",
    )


def contribution_checks(game: DeviceGame, play: DevicePlay) -> list[Check]:
    """Noise and bound of one contribution, and the numbers that it is made of."""
    mechanism = game.mechanism
    laplace = mechanism.noise == "laplace"
    longest = max(_length(game, row) for row in _odd(mechanism.size, mechanism.clip))
    return [
        size_of_noise("noise of a contribution", play.noise.ravel(), kurtosis=_LAPLACE_KURTOSIS if laplace else 3.0),
        Check(
            name="longest gradient that enters",
            measured=f"{longest:.6f} bounds",
            stated="at most 1",
            holds=longest <= 1 + (0 if laplace else 1e-9),
            note="exact, in whole steps" if laplace else "",
        ),
        Check(
            name="what a contribution is made of",
            measured="whole steps" if play.whole else "floats",
            stated="whole steps of a public grid",
            holds=play.whole,
        ),
        Check(
            name="noise that comes again",
            measured=f"{play.again:.0%} of the contributions",
            stated="none",
            holds=play.again < 0.01 or mechanism.size == 1,
        ),
        *_price(game),
    ]


def _price(game: DeviceGame) -> Iterator[Check]:
    """What a device is charged, against the noise and the bound in whole steps, for Laplace noise exactly."""
    mechanism = game.mechanism
    if mechanism.noise != "laplace":
        return
    whole = mechanism.whole
    apart = 2 * whole.bound * (mechanism.size if not whole.joint and mechanism.privacy == "model" else 1)
    lost = apart / whole.scale
    yield Check(
        name="price of a contribution",
        measured=f"{lost:.6f}, from whole numbers",
        stated=f"{game.claimed:.6f}",
        holds=lost <= game.claimed,
    )
    repeated, alone = game.specification.mechanism, game.specification.repeats
    if mechanism.privacy == "feature":
        charged = 1 / repeated.event("feature").noise_multiplier
        owed = min(alone, repeated.size) * game.claimed
        yield Check(
            name="price of a column that is told several times",
            measured=f"{charged:.4f} for {alone} times",
            stated=f"{owed:.4f}",
            holds=charged >= owed * (1 - 1e-9),
        )


def _odd(size: int, clip: float) -> Iterator[np.ndarray]:
    stream = SeededRandomness(seed=0).stream("audit")
    yield from (
        np.zeros(size),
        stream.normals(size) * clip / size,
        stream.normals(size) * 1e6 * clip,
        np.full(size, np.finfo(np.float64).max),
        np.full(size, np.nan),
        np.full(size, np.inf),
        np.where(np.arange(size) % 2, 1e300, -1e-300),
        np.eye(1, size)[0] * clip * (1 + 1e-12),
        np.full(size, clip / size * (1 + 1e-12)),
    )


def _length(game: DeviceGame, row: np.ndarray) -> float:
    """How long a gradient is that enters, in its bound."""
    mechanism = game.mechanism
    bounded = mechanism.bounded(row)
    if mechanism.noise == "laplace":
        whole = mechanism.whole
        sizes = np.abs(bounded)
        return float(sizes.sum() if whole.joint else sizes.max()) / whole.bound
    if mechanism.bound == "element":
        return float(np.abs(bounded).max() / mechanism.clip)
    return float(np.linalg.norm(bounded) / mechanism.clip)
