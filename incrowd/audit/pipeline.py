"""The first rounds of a configured federation, with its own model, engine, clip and noise.

A slow sum clips the engine's contributions one by one, as a textbook does. A release without this sum has to be the
stated noise and nothing else, so a fault anywhere between a client's gradient and the release shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from incrowd._random import Floats, Integers, SeededRandomness
from incrowd.algorithms.clients import ClientCohort
from incrowd.algorithms.fedavg import FedAvg, State
from incrowd.audit.bounds import Check
from incrowd.audit.canaries import ledger_of, strategy_of
from incrowd.audit.checks import ALARM, likeness, size_of_noise
from incrowd.audit.contributions import ROUNDING, slowly_clipped
from incrowd.errors import ConfigError
from incrowd.learning.contributions import Contributions
from incrowd.learning.engine import EngineTrainer
from incrowd.privacy.mechanism.clipped_sum import ClippedSum
from incrowd.privacy.mechanism.clipping import Clip, MedianClip, ScalingClip
from incrowd.privacy.release import PrivateRun, Release
from incrowd.runs.work import ClientWork

ROUNDS = 3
"""The audit takes this many rounds."""

_ALONE = 3
"""This many clients learn alone and among others."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LookedAt:
    """One round: its release, the slow sum of its contributions, and the weights before and after it."""

    release: Release
    total: Floats
    state: State
    after: State


def pipeline_checks(work: ClientWork, *, seed: int, rounds: int = ROUNDS) -> list[Check]:
    """Check the federation's first rounds, and the sum of its last.

    Guarantee: a ledger in memory pays; the real one is not opened. A right pipeline fails each check once in a million
    audits at most. Private data are refused (`ConfigError`), because no budget pays for the result.
    """
    if not work.data.public:
        remedy = "an audit trains on the clients' examples and pays for nothing: only public ones may be looked at"
        raise ConfigError(field="data.public", value=False, remedy=remedy)
    looked = _rounds(work, seed=seed, rounds=min(rounds, work.plan.rounds))
    noise = _noise(work, looked)
    found = [size_of_noise("noise of the federation", noise.ravel())]
    parts = np.split(noise, np.cumsum(work.engine.parts)[:-1], axis=1)
    if len(parts) > 1:
        looks = [size_of_noise(f"noise of part {n}", part.ravel(), looks=len(parts)) for n, part in enumerate(parts)]
        found.append(next((one for one in looks if not one.holds), looks[0]))
    pairs = [(noise[first], noise[second]) for first in range(len(noise)) for second in range(first)]
    if pairs:
        found.append(likeness(pairs, name="noise of two rounds of the federation, alike by"))
    found += [_along(looked, noise), *_last_sum(work, looked[-1].after, seed=seed)]
    return [*found, _independent(work, looked, seed=seed)]


def _rounds(work: ClientWork, *, seed: int, rounds: int) -> list[LookedAt]:
    algorithm = _algorithm(work, seed=seed)
    private, state = algorithm.cohort.private, algorithm.init()
    looked = []
    for number in range(rounds):
        opened = private.round(number, carry=state.carry)
        trainer = EngineTrainer(work.engine, state.start, randomness=private.randomness)
        cohort = work.engine.present(private.cohort(number))
        opened.ask(trainer, present=work.engine.present)
        answers = algorithm.cohort.released(opened)
        total = slow_sum(trainer, cohort, work, number=number, clip=state.carry.clip)
        after = state.after(answers, server=work.config.server, rounds=work.plan.rounds)
        assert answers.release is not None  # noqa: S101 - the server's noise
        looked.append(LookedAt(release=answers.release, total=total, state=state, after=after))
        state = after
    return looked


def _algorithm(work: ClientWork, *, seed: int) -> FedAvg[ClientCohort]:
    private = PrivateRun(
        work.plan,
        ledger=ledger_of(work.plan),
        randomness=SeededRandomness(seed=seed),
        size=work.engine.size,
        label="audit",
        places=work.data.places,
    )
    return FedAvg(ClientCohort(engine=work.engine, private=private), server=work.config.server)


def slow_sum(
    trainer: EngineTrainer, cohort: Integers, work: ClientWork, *, number: int, clip: Clip | MedianClip
) -> Floats:
    """Sum the cohort's contributions, clipped one by one."""
    if isinstance(clip, MedianClip):
        chunks = trainer.cohort(cohort, round=number).chunks()
        lengths = [chunk.norms()[:, 0] for chunk in chunks if isinstance(chunk, Contributions)]
        clip = clip.fit(np.concatenate(lengths))
    total = np.zeros(work.engine.size)
    for chunk in trainer.cohort(cohort, round=number).chunks():
        for row in chunk.rows():
            total += slowly_clipped(clip, row.astype(np.float64))
    return total


def _noise(work: ClientWork, looked: Sequence[LookedAt]) -> Floats:
    """Each release without its slow sum, in stated deviations; correlation is undone."""
    left = np.array([one.release.total.values - one.total for one in looked])
    if work.plan.correlated is not None:
        fresh: Floats = strategy_of(work.plan, len(looked)) @ left / work.plan.correlated.scale(left.shape[1])[1]
        return fresh
    scaled: Floats = left / np.array([one.release.noise_std for one in looked])[:, None]
    return scaled


def _along(looked: Sequence[LookedAt], noise: Floats) -> Check:
    """Check that the noise has no part along the slow sum."""
    lengths = [float(np.linalg.norm(one.total)) for one in looked]
    rows = zip(looked, noise, lengths, strict=True)
    scores = [abs(float(left @ one.total) / length) for one, left, length in rows if length > 0]
    worst, limit = max(scores, default=0.0), float(norm.isf(ALARM / len(looked))) * 1.5
    note = "each contribution clipped by itself, slowly"
    measured = f"{worst:.2f} standard deviations"
    return Check("what is left of the clients in the noise", measured, "0", holds=worst <= limit, note=note)


def _last_sum(work: ClientWork, state: State, *, seed: int) -> list[Check]:
    """Check the engine's sum of the last round: a fault may begin late. Clips without a fast sum have no check."""
    clip, number = state.carry.clip, work.plan.rounds - 1
    if work.plan.noise_by == "party" or not isinstance(clip, ScalingClip):
        return []
    private = _algorithm(work, seed=seed).cohort.private
    trainer = EngineTrainer(work.engine, state.start, randomness=private.randomness)
    clients = work.engine.present(private.cohort(number))
    fast = ClippedSum(work.engine.size, clip, contributions_bound=max(1, len(clients)))
    fast.add_summed(clip, trainer.cohort(clients, round=number))
    slow = slow_sum(trainer, clients, work, number=number, clip=clip)
    off, limit = float(np.linalg.norm(fast.close().values - slow)) / clip.clip_norm, ROUNDING * max(1, len(clients))
    note, stated = f"{len(clients)} contributions, each clipped by itself, slowly", f"at most {limit:.3g}, by rounding"
    return [Check("sum of the last round", f"off by {off:.3g} bounds", stated, holds=off <= limit, note=note)]


def _independent(work: ClientWork, looked: Sequence[LookedAt], *, seed: int) -> Check:
    """Check that a client contributes the same alone and among others, bit for bit, to a query and in training."""
    engine, randomness = work.engine, SeededRandomness(seed=seed)
    clients = engine.present(np.arange(min(work.data.present, 4 * _ALONE))).tolist()
    training = 0 if engine.label_query is None else 1  # the first round that trains clients
    changed = set[int]()
    for state in [one.state for one in looked[: training + 1]]:
        among: dict[int, Floats] = {}
        trainer = EngineTrainer(engine, state.start, randomness=randomness)
        for chunk in trainer.cohort(clients, round=state.round).chunks():
            among.update(zip(chunk.clients, chunk.rows(), strict=True))
        for client in clients[:_ALONE]:
            for chunk in trainer.cohort([client], round=state.round).chunks():
                if not np.array_equal(chunk.rows()[0], among[client], equal_nan=True):
                    changed.add(client)
    measured = f"changes for {len(changed)} of {len(clients[:_ALONE])}"
    stated = "nothing changes, to the last bit"
    return Check("what a client learns among others", measured, stated, holds=not changed)
