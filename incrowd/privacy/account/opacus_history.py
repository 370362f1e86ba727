"""Opacus' accountants keep a history: runs of (noise multiplier, sample rate, steps). Here it becomes events, and back.

What it costs is then stated by our own accountants; a history never says more than what happened, so nothing is taken
over but that. The history of an accountant is ``accountant.history``, or ``accountant.state_dict()["history"]``.
"""

from collections.abc import Iterable, Sequence

from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from incrowd import _validate
from incrowd.errors import ConfigError, UnpricedEvent
from incrowd.privacy.account.events import RepeatedEvent, compose, mechanisms

History = list[tuple[float, float, int]]


def runs_from_history(history: Iterable[Sequence[float]]) -> tuple[RepeatedEvent, ...]:
    """The events of an Opacus history, each with how often it happened, in order.

    Guarantee: every step becomes a Gaussian on a Poisson sample under adding or removing one record, which is what
    Opacus' accountants assume; a sample rate of 1 becomes a plain Gaussian.

    Edge cases: an empty history gives no runs; a noise multiplier of 0 (that is not private), a rate that is no
    probability, steps that are no count, or an entry of another form are refused.
    """
    return tuple(_run(entry) for entry in history)


def event_from_history(history: Iterable[Sequence[float]]) -> DpEvent:
    """The whole of an Opacus history as one event, for a ledger to be charged with."""
    return compose(runs_from_history(history))


def history_from_event(event: DpEvent) -> History:
    """An event as an Opacus history.

    Guarantee: an Opacus accountant with this history prices the same mechanisms; the order is lost, which no price
    depends on, and plain Gaussians become the one that they jointly are.

    Edge cases: nothing happened: an empty history. What no history can say (Laplace noise, samples of a fixed size) is
    refused.
    """
    return [_entry(mechanism, count) for mechanism, count in mechanisms(event)]


def _run(entry: Sequence[float]) -> RepeatedEvent:
    try:
        noise_multiplier, sample_rate, steps = entry
    except (TypeError, ValueError) as error:
        remedy = "give (noise multiplier, sample rate, steps)"
        raise ConfigError(field="history", value=entry, remedy=remedy) from error
    _validate.positive(noise_multiplier=noise_multiplier)
    _validate.probability(sample_rate=sample_rate)
    _validate.count(steps=steps)
    gaussian = GaussianDpEvent(float(noise_multiplier))
    return (gaussian if sample_rate == 1 else PoissonSampledDpEvent(float(sample_rate), gaussian), int(steps))


def _entry(mechanism: DpEvent, count: int) -> tuple[float, float, int]:
    match mechanism:
        case GaussianDpEvent():
            return (mechanism.noise_multiplier, 1.0, count)
        case PoissonSampledDpEvent(event=GaussianDpEvent() as gaussian):
            return (gaussian.noise_multiplier, mechanism.sampling_probability, count)
        case _:
            kind = type(mechanism).__name__
            raise UnpricedEvent(f"an Opacus history knows Gaussian noise on Poisson samples only, and no {kind}")
