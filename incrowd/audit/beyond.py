"""What seeded plays of some canaries do not show: noise in earnest, and clients who are no canaries.

Who would like an audit to pass could do right by canaries alone: add all the noise where randomness is seeded, draw
honestly the clients with the first numbers. These looks are at the rest.
"""

import math

import numpy as np
from scipy.stats import binom

from incrowd._random import Floats, SeededRandomness, SystemRandomness
from incrowd.audit.checks import ALARM, size_of_noise
from incrowd.audit.contributions import FirstRound
from incrowd.audit.finding import Check
from incrowd.audit.plays import send
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import ElementwiseClip, PerLayerClip
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.release import PrivateRun

_NUMBERS = 40_000
_RUNS = 100
_COHORTS = 500


def noise_in_earnest(plan: Plan) -> Check:
    """The noise of the operating system's randomness, in which no simulation takes part, has the size that is stated.

    Guarantee: of a right pipeline it fails once in a million audits at most, although nothing of it can be seeded.
    """
    clip = plan.config.clip
    layered = isinstance(clip, PerLayerClip | ElementwiseClip)
    size = FirstRound(plan=plan).size if layered else _NUMBERS
    noises: list[Floats] = []
    while len(noises) < _RUNS and size * len(noises) < _NUMBERS:
        ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
        run = PrivateRun(plan, ledger=ledger, randomness=SystemRandomness(), size=size, label="audit")
        opened, sends = run.round(0), [0] if plan.noise_by == "party" else []
        send(opened, plan, run.cohort(0), np.zeros((len(sends), size)), clients=sends)
        release = opened.release()
        std = release.noise_std
        if plan.noise_by == "party":
            std = plan.round(0).noise_multiplier * release.clip_norm
        noises.append(release.total.values / std)
    return size_of_noise("noise in earnest", np.concatenate(noises))


def every_client_alike(plan: Plan, *, seed: int) -> list[Check]:
    """Each client, whatever its number, is drawn as often as is priced: for one that is drawn more often nothing holds.

    Edge cases: where everyone takes part, or clients take turns, nothing is drawn: no check.
    """
    sampler = plan.round(0).sampler
    chance = sampler.expected_cohort / sampler.clients
    if chance == 1 or plan.config.groups is not None:
        return []
    alike = next((number for number in range(plan.rounds) if plan.round(number).sampler != sampler), plan.rounds)
    size, taken, drawn = FirstRound(plan=plan).size, np.zeros(sampler.clients, np.int64), 0
    while drawn < _COHORTS:
        ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
        randomness = SeededRandomness(seed=seed * _COHORTS + drawn)
        run = PrivateRun(plan, ledger=ledger, randomness=randomness, size=size, label="audit")
        for number in range(min(alike, _COHORTS - drawn)):
            taken[run.cohort(number)] += 1
            drawn += 1
    alarm = ALARM / sampler.clients
    low, high = (float(limit) for limit in (binom.ppf(alarm, drawn, chance), binom.isf(alarm, drawn, chance)))
    client = int(np.argmax(np.abs(taken - drawn * chance)))
    return [
        Check(
            name="draws of the client that is furthest off",
            measured=f"{taken[client] / drawn:.4f} of {drawn} cohorts",
            stated=f"{chance:.4f}",
            holds=low <= taken[client] <= high,
            note=f"of {sampler.clients} clients; would see one off by {(high - low) / 2 / drawn + _shy(drawn):.2g}",
        )
    ]


def _shy(drawn: int) -> float:
    """What chance may take from a difference, nine times out of ten, at most."""
    return 1.3 * math.sqrt(0.25 / drawn)
