"""The noisy steps of record-level training (Abadi et al. 2016): what a round of them is, costs and hides."""

from dataclasses import dataclass

from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.privacy.ledger.receipt import Receipt
from incrowd.privacy.mechanism.noise import GaussianNoise, Purpose

FLOAT32_RECORDS = 128
"""The most gradients that an engine may add up in float32; larger sums are added in float64."""

_SLACK = 2.0**-9


@dataclass(frozen=True, kw_only=True)
class RecordTraining:
    """The public settings of one round of DP-SGD in one silo.

    A record takes part in each of `steps` steps with probability `sampling_prob`. The noised sum of a step's clipped
    gradients is divided by `expected_batch`, a public number: never the realised batch or the number of records. At
    most `physical_batch` records are worked on at once, whatever the size of a batch. `most_records` bounds how many
    records a silo may hold, so that the rounding errors of a sum are bounded too.

    Guarantee: `runs` is what a round costs under adding or removing one record, provided that the noise of every step
    is `noise_multiplier` times `sensitivity`.

    Edge cases: a probability of 1 takes every record in every step and is priced without amplification. Clip bounds
    outside of 1e-20 to 1e20 would meet the ends of float32 and are refused.
    """

    steps: int
    sampling_prob: float
    expected_batch: float
    clip_norm: float
    noise_multiplier: float
    physical_batch: int = 256
    most_records: int = 2**20

    def __post_init__(self) -> None:
        _validate.count(steps=self.steps, physical_batch=self.physical_batch, most_records=self.most_records)
        _validate.probability(sampling_prob=self.sampling_prob)
        _validate.positive(
            expected_batch=self.expected_batch, clip_norm=self.clip_norm, noise_multiplier=self.noise_multiplier
        )
        if not 1e-20 <= self.clip_norm <= 1e20:
            raise ConfigError(field="clip_norm", value=self.clip_norm, remedy="give a bound from 1e-20 to 1e20")

    @property
    def sensitivity(self) -> float:
        """How far one record can move a computed sum: the clip bound, and 0.2 % of it for rounding in float32.

        Adding K vectors of norm C in float32 errs by at most K^2 2^-24 C, in any order (Higham 2002, section 4.2). For
        K = 128, and for both of two neighbouring sums, this is 2^-9 C. Larger sums, in float64, err by far less.
        """
        return self.clip_norm * (1 + _SLACK)

    @property
    def event(self) -> DpEvent:
        """What one step costs: a Gaussian on a Poisson sample; a plain one when everyone takes part."""
        gaussian = GaussianDpEvent(self.noise_multiplier)
        return gaussian if self.sampling_prob == 1 else PoissonSampledDpEvent(self.sampling_prob, gaussian)

    @property
    def runs(self) -> tuple[tuple[DpEvent, int], ...]:
        """What a round costs: the event of a step, and how many steps there are."""
        return ((self.event, self.steps),)

    @property
    def noise(self) -> GaussianNoise:
        """What hides a record in a step."""
        return GaussianNoise(noise_multiplier=self.noise_multiplier, clip_norm=self.sensitivity)

    def check_noise(self, size: int) -> None:
        """Refuse noise that fits no grid for sums of so many numbers, before it is paid for (see `GaussianNoise`)."""
        self.noise.step(size, contributions_bound=self.most_records)

    def noised(self, total: Floats, *, receipt: Receipt, at: Purpose) -> Floats:
        """A step's clipped sum with noise on it, safe on floating point.

        Guarantee: every call costs `event` (see `GaussianNoise`, with the bound `sensitivity` on a contribution and
        `most_records` on their number).
        """
        return self.noise.add(total, receipt=receipt, at=at, contributions_bound=self.most_records).values
