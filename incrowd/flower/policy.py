"""What the owner of a party's data allows any server to ask of it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from incrowd import _validate
from incrowd.errors import SpecificationRefused
from incrowd.flower.extent import extent_of
from incrowd.flower.offer import Offer
from incrowd.privacy.account.accounting import Budget


@dataclass(frozen=True, kw_only=True)
class PartyPolicy:
    """What a party allows any server to ask of it; set by its owner, never by a server.

    `budget` is for all servers and all time, `daily_epsilon` for a day, at the budget's delta. `fields` are the columns
    that a model may use, which an offer then has to name, and `models` the kinds of model; every one unless they are
    named. No round may have less noise than `least_noise`, a noise multiplier. An offer of more than `most_weights` or
    `most_rounds`, whose rounds are of more than `most_steps` kinds, or pass more than `most_epochs` times over the
    examples, is refused before it is priced and tried out, which would take the party's time. `evaluations` says
    whether models may be scored on the party's examples, which costs as a round does.
    """

    budget: Budget
    daily_epsilon: float | None = None
    least_noise: float = 0.0
    fields: Collection[str] | None = None
    models: Collection[str] | None = None
    most_weights: int = 10_000_000
    most_rounds: int = 10_000
    most_steps: int = 32
    most_epochs: int = 100
    evaluations: bool = True

    def __post_init__(self) -> None:
        _validate.count(most_weights=self.most_weights, most_rounds=self.most_rounds)
        _validate.count(most_steps=self.most_steps, most_epochs=self.most_epochs)
        _validate.non_negative(least_noise=self.least_noise)
        if self.daily_epsilon is not None:
            _validate.positive(daily_epsilon=self.daily_epsilon)

    def look(self, form: Mapping[str, Any]) -> None:
        """Refuse (`SpecificationRefused`) an offer, as it came, that is more than this policy allows.

        Guarantee: this takes no longer than reading the offer does.
        """
        extent = extent_of(form)
        for what, value, most in (
            ("weights", extent.weights, self.most_weights),
            ("rounds", extent.rounds, self.most_rounds),
            ("kinds of rounds", extent.steps, self.most_steps),
            ("epochs", extent.epochs, self.most_epochs),
        ):
            if value > most:
                raise SpecificationRefused(f"{value} {what} are more than this party allows, {most}")

    def check(self, offer: Offer) -> None:
        """Refuse (`SpecificationRefused`) an offer that this policy does not allow."""
        self.check_model(offer.columns, offer.model)
        if offer.scoring is not None and not self.evaluations:
            raise SpecificationRefused("an evaluation, and this party lets no model be scored on its examples")
        if offer.weights > self.most_weights:
            raise SpecificationRefused(f"{offer.weights} weights are more than this party allows, {self.most_weights}")
        if offer.plan.noise_multiplier < self.least_noise:
            raise SpecificationRefused(
                f"a noise multiplier of {offer.plan.noise_multiplier:.6g} is less than this party asks for, "
                f"{self.least_noise:g}"
            )

    def check_scored(self, what: str, noise_multiplier: float) -> None:
        """Refuse (`SpecificationRefused`) figures of a model on a silo's records that this policy does not allow."""
        if not self.evaluations:
            raise SpecificationRefused(f"{what}, and this party lets no model be scored on its examples")
        if noise_multiplier < self.least_noise:
            raise SpecificationRefused(
                f"{what} with a noise multiplier of {noise_multiplier:.6g} is less than this party asks for, "
                f"{self.least_noise:g}"
            )

    def check_model(self, columns: Collection[str], kind: str) -> None:
        """Refuse (`SpecificationRefused`) a kind of model, or columns that it uses, that this policy does not allow."""
        if self.fields is not None and not columns:
            raise SpecificationRefused("an offer that does not say which fields its model uses")
        for name in columns:
            if self.fields is not None and name not in self.fields:
                raise SpecificationRefused(f"the field {name} is not one that this party lets models use")
        if self.models is not None and kind not in self.models:
            raise SpecificationRefused(f"a model of the kind {kind!r} is not one that this party trains")
