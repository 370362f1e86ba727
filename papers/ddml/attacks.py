"""Attackers among the devices of draw and discard: each knows the code, the specification, and what it has drawn.

Some also look into the pool, which no device can. All know what a good model is, and pull the other way.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.arrays import Floats
from incrowd.drawdiscard import Pool
from incrowd.types import Stream


@dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """What an attacker has when it is its turn.

    `drawn`, and the `version` that this is; the `step` (minus gamma times the gradient) and the `noise` that an honest
    device would add; `scale` and `clip`, those of the specification times gamma; `sigma`, the noise's deviation;
    `threshold` and `spread`, of the band and the pool by theory; `harm`, where it wants weights to go, of mean square
    1; how much of the time is `gone`; and what all attackers remember together.
    """

    pool: Pool
    drawn: Floats
    version: int
    step: Floats
    noise: Floats
    scale: float
    sigma: float
    clip: float
    threshold: float
    spread: float
    harm: Floats
    gone: float
    stream: Stream
    memory: dict[str, Any]

    @property
    def away(self) -> Floats:
        """The signs of the harm; where it has none, those of the noise."""
        signs: Floats = np.sign(np.where(self.harm == 0, self.noise, self.harm))
        return signs

    @property
    def known(self) -> tuple[Floats, Floats]:
        """Each weight's mean and standard deviation over the pool: what no device can look at."""
        held = self.pool.instances.astype(np.float64)
        return held.mean(axis=0), held.std(axis=0, ddof=1)

    def one_of(self, choices: int) -> int:
        """One of so many, each with the same chance."""
        return int(self.stream.bits(1)[0] % np.uint64(choices))

    def mean_of_draws(self) -> Floats:
        """The mean of what they all drew, ten instances a turn, of which the latest count most."""
        mean, seen = self.memory.get("mean", self.drawn), self.memory.get("seen", 0)
        for number in range(seen + 1, seen + 11):
            mean = mean + max(0.02, 1 / number) * (self.pool.draw() - mean)
        self.memory["mean"], self.memory["seen"] = mean, seen + 10
        found: Floats = mean
        return found


Sent = tuple[int, Floats]
"""An answer: the version that its ticket names, and weights."""

Forge = Callable[[Turn, float], Sent]
"""What an attacker sends in place of an honest answer, at some strength."""

Schedule = Callable[[float, int, int, float], bool]
"""Whether an update is an attacker's: of their share, the update, how many there are, and a coin in [0, 1)."""


def any_time(share: float, _update: int, _updates: int, coin: float) -> bool:
    """Each update may be."""
    return coin < share


def after_half(share: float, update: int, updates: int, coin: float) -> bool:
    """Honest for the first half of the time."""
    return 2 * update >= updates and coin < share


def first_of_all(share: float, update: int, _updates: int, coin: float) -> bool:
    """The first 600 answers are all theirs, so that what is learnt is learnt of them."""
    return update < 600 or coin < share


def in_bursts(share: float, update: int, _updates: int, _coin: float) -> bool:
    """All of theirs in a row, 300 at a time."""
    return update % round(300 / share) < 300


@dataclass(frozen=True)
class Attack:
    """A name for people, what is sent, at which strengths and in which directions it is tried, and when they come.

    `stoppable` is false where a single answer is as an honest device's might be.
    """

    name: str
    forge: Forge
    strengths: tuple[float, ...] = (1.0,)
    schedule: Schedule = field(default=any_time)
    harms: tuple[str, ...] = ("signs",)
    stoppable: bool = True


def _mean_of_draws(turn: Turn, strength: float) -> Sent:
    width = turn.threshold * math.hypot(turn.spread, turn.sigma)
    return turn.version, turn.mean_of_draws() + strength * width * turn.harm


def _known_mean(turn: Turn, strength: float) -> Sent:
    mean, spread = turn.known
    return turn.version, mean + strength * turn.threshold * np.hypot(spread, turn.sigma) * turn.harm


def _one_weight(turn: Turn, strength: float) -> Sent:
    weights = turn.drawn + turn.step + turn.noise
    mean, spread = turn.known
    weights[0] = mean[0] + strength * turn.threshold * math.hypot(spread[0], turn.sigma)
    return turn.version, weights


def _ramp(turn: Turn, strength: float) -> Sent:
    return _known_mean(turn, strength * min(1.0, 2 * turn.gone))


def _replay(turn: Turn, _strength: float) -> Sent:
    return turn.version, turn.memory.setdefault("old", turn.drawn)


def _noisy_replay(turn: Turn, _strength: float) -> Sent:
    return turn.version, turn.memory.setdefault("old", turn.drawn) + turn.noise


def _old_ticket(turn: Turn, _strength: float) -> Sent:
    """Honest noise on the oldest version that it drew and that the server still knows, with the ticket of then."""
    kept = turn.memory.setdefault("versions", {})
    kept[turn.version] = turn.drawn
    known = [version for version in kept if turn.pool.version(version) is not None]
    turn.memory["versions"] = {version: kept[version] for version in known}
    oldest = min(known)
    return oldest, kept[oldest] + turn.noise


def _drawn_and_shift(turn: Turn, strength: float) -> Sent:
    return turn.version, turn.drawn + strength * turn.sigma * turn.harm


def _aligned(turn: Turn, strength: float) -> Sent:
    return turn.version, turn.drawn + strength * np.abs(turn.noise) * turn.away


def _aligned_and_clip(turn: Turn, strength: float) -> Sent:
    return turn.version, turn.drawn + strength * (np.abs(turn.noise) + turn.clip) * turn.away


def _sorted(turn: Turn, strength: float) -> Sent:
    """The longest of honest sizes where they harm most."""
    sizes = np.empty_like(turn.drawn)
    sizes[np.argsort(np.abs(turn.harm))] = np.sort(np.abs(turn.noise))
    return turn.version, turn.drawn + strength * sizes * turn.away


def _hidden_shift(turn: Turn, strength: float) -> Sent:
    rest = math.sqrt(max(0.0, 1 - strength**2))
    return turn.version, turn.drawn + strength * turn.sigma * turn.harm + rest * turn.noise


def _some_signs(turn: Turn, strength: float) -> Sent:
    """Honest noise, of which a share of the signs is chosen: another share every time."""
    chosen = turn.stream.bits(len(turn.drawn)).astype(float) * 2.0**-64 < strength
    return turn.version, turn.drawn + np.where(chosen, np.abs(turn.noise) * turn.away, turn.noise)


def _rotating(turn: Turn, strength: float) -> Sent:
    """Honest sizes along one of 24 directions, each with half of the harm's signs, another one every answer."""
    patterns = turn.memory.setdefault("patterns", [])
    while len(patterns) < 24:
        patterns.append(
            np.where(turn.stream.bits(len(turn.drawn)) >> np.uint64(63), 1.0, turn.stream.normals(len(turn.drawn)))
        )
    signs = np.sign(patterns[turn.one_of(24)]) * turn.away
    return turn.version, turn.drawn + strength * np.abs(turn.noise) * signs


def _blocks(turn: Turn, strength: float) -> Sent:
    """Honest sizes; only the signs of one of ten blocks of weights are chosen, another block every 100 answers."""
    turn.memory["turns"] = turn.memory.get("turns", 0) + 1
    block = np.arange(len(turn.drawn)) % 10 == turn.memory["turns"] // 100 % 10
    return turn.version, turn.drawn + strength * np.where(block, np.abs(turn.noise) * turn.away, turn.noise)


def _decoys(turn: Turn, strength: float) -> Sent:
    """Half of them pull in a dozen directions of no harm, so that those are the leading ones."""
    decoys = turn.memory.setdefault("decoys", [np.sign(turn.stream.normals(len(turn.drawn))) for _ in range(12)])
    if turn.one_of(2):
        return turn.version, turn.drawn + np.abs(turn.noise) * decoys[turn.one_of(12)]
    return _aligned(turn, strength)


def _quiet_then_aligned(turn: Turn, strength: float) -> Sent:
    """Little noise at first, so that honest devices look loud."""
    if turn.gone < 0.1:
        return turn.version, turn.drawn + 0.93 * turn.noise
    return _aligned(turn, strength)


def _chosen_noise(turn: Turn, strength: float) -> Sent:
    """The most harmful of so many honest noises."""
    size = len(turn.drawn)
    noises = turn.scale * turn.stream.laplaces(int(strength) * size).reshape(-1, size)
    return turn.version, turn.drawn + noises[np.argmax(noises @ turn.harm)]


def _legal_step(turn: Turn, strength: float) -> Sent:
    """A whole clip the wrong way, and honest noise: what a device with such data would send."""
    return turn.version, turn.drawn + strength * turn.clip * turn.away + turn.noise


def _backwards(turn: Turn, strength: float) -> Sent:
    return turn.version, turn.drawn - strength * turn.step + turn.noise


def _worst_draw(turn: Turn, _strength: float) -> Sent:
    """Nothing but honest noise, on the most harmful of ten instances."""
    drawn = [turn.pool.draw_version() for _ in range(10)]
    version, row = max(drawn, key=lambda one: float(one[1] @ turn.harm))
    return version, row + turn.noise


ATTACKS = (
    Attack("mean of draws + c bands", _mean_of_draws, (0.25, 0.9)),
    Attack("known mean + c bands", _known_mean, (0.1, 0.9)),
    Attack("one weight by c bands", _one_weight, (0.5, 0.9)),
    Attack("slow ramp to c bands", _ramp, (0.3, 0.9)),
    Attack("replay", _replay),
    Attack("replay + noise", _noisy_replay),
    Attack("oldest ticket + noise", _old_ticket, stoppable=False),
    Attack("drawn + c sigma", _drawn_and_shift, (0.75, 1.2, 1.45), harms=("signs", "sizes")),
    Attack("aligned noise, c times", _aligned, (1.0, 1.4)),
    Attack("aligned noise and clip, c times", _aligned_and_clip, (0.45, 0.72)),
    Attack("sorted aligned noise, c times", _sorted, (1.0, 1.1), harms=("sizes",)),
    Attack("hidden shift of c sigma", _hidden_shift, (0.15, 0.25, 0.4), harms=("signs", "sizes")),
    Attack("a share c of the signs", _some_signs, (0.15, 0.3, 0.6)),
    Attack("rotating directions", _rotating),
    Attack("blocks in turn", _blocks),
    Attack("decoys", _decoys),
    Attack("the first answers, then aligned", _quiet_then_aligned, schedule=first_of_all),
    Attack("aligned noise in bursts", _aligned, schedule=in_bursts, stoppable=False),
    Attack("aligned noise after half the time", _aligned, schedule=after_half),
    Attack("drawn + c sigma after half", _drawn_and_shift, (1.2,), schedule=after_half, harms=("sizes",)),
    Attack("the worst of c noises", _chosen_noise, (30.0,), harms=("sizes",), stoppable=False),
    Attack("its own step backwards, c times", _backwards, (1.0, 5.0), stoppable=False),
    Attack("a whole clip + noise, c times", _legal_step, (0.3, 1.0), stoppable=False),
    Attack("the worst of ten draws + noise", _worst_draw, harms=("sizes",), stoppable=False),
)
