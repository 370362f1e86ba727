"""Whether an event is that of the noises which are drawn against its charge: whoever states both could state two."""

from collections.abc import Sequence

from dp_accounting import DpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from dp_accounting.dp_event import ComposedDpEvent, SampledWithoutReplacementDpEvent, SelfComposedDpEvent

from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Relation
from incrowd.privacy.account.events import PureDpEvent, RepeatedEvent
from incrowd.privacy.ledger.receipt import Draws

_ROUNDING = 1 - 1e-9


def check_paid(
    event: DpEvent,
    pays_for: Draws,
    *,
    relation: Relation,
    people: int = 1,
    planned: Sequence[RepeatedEvent] = (),
    per: object = None,
) -> None:
    """Refuse to pay for noises with an event that tells less than they do.

    A noise says what one draw costs (`event`); where one is replaced a sum moves by two of its bounds, unless the noise
    counts these already (`of_replacing`). Where so many `people` draw, each draws for itself. A noise for a `whole_run`
    is paid for by all that is `planned` under the reservation.

    Guarantee: the sum of 1 / z^2 of the event's Gaussian releases is at least that of the noises, and so is the sum of
    the epsilons of all others.

    Edge cases: how the event's participants are sampled is not seen here: `PrivateRun` and `Permit` draw them. What is
    charged `per` feature, as the ledger notes, is one number of the many that a noise bounds together: not checked.
    """
    if per == "feature" or not pays_for:
        return
    once = [(_event_of(noise), -(-times // people), noise) for noise, times in pays_for]
    whole = [noise for _, _, noise in once if getattr(noise, "whole_run", False)]
    stated = _told(planned if whole and planned else [(event, 1)])
    drawn = (0.0, 0.0)
    for its, times, noise in once:
        bounds = 2 if relation is Relation.REPLACE_ONE and not getattr(noise, "of_replacing", False) else 1
        gaussian, pure = _told([(its, 1 if noise in whole else times)])
        drawn = drawn[0] + gaussian * bounds**2, drawn[1] + pure * bounds
    if any(told < its * _ROUNDING for told, its in zip(stated, drawn, strict=True)):
        remedy = "it costs less than the noise that it is to pay for: charge the event of that noise"
        raise ConfigError(field="event", value=event, remedy=remedy)


def _event_of(noise: object) -> DpEvent:
    stated = getattr(noise, "event", None)
    if stated is None:
        remedy = "it does not say what a draw costs: give one of incrowd.privacy.mechanism"
        raise ConfigError(field="pays_for", value=type(noise).__name__, remedy=remedy)
    return stated()


def _told(runs: Sequence[RepeatedEvent]) -> tuple[float, float]:
    """The sum of 1 / z^2 of Gaussian releases, and of the epsilons of others, as if everyone took part in all."""
    gaussian = pure = 0.0
    for event, times in runs:
        within = (0.0, 0.0)
        if isinstance(event, GaussianDpEvent):
            inverse = 1 / event.noise_multiplier
            gaussian += times * inverse * inverse
        elif isinstance(event, LaplaceDpEvent):
            pure += times / event.noise_multiplier
        elif isinstance(event, PureDpEvent):
            pure += times * event.epsilon
        elif isinstance(event, SelfComposedDpEvent):
            within = _told([(event.event, event.count)])
        elif isinstance(event, ComposedDpEvent):
            within = _told([(each, 1) for each in event.events])
        elif isinstance(event, PoissonSampledDpEvent | SampledWithoutReplacementDpEvent):
            within = _told([(event.event, 1)])
        gaussian, pure = gaussian + times * within[0], pure + times * within[1]
    return gaussian, pure
