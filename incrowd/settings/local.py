"""What a client does with its examples in a round."""

from typing import Annotated, Any

from pydantic import AfterValidator

from incrowd import _validate
from incrowd.errors import ConfigError
from incrowd.settings.descent import Descent

GIVEN = "given"
"""What settings say of an object that a program hands over."""

LOSS_NAMES = ("cross entropy", "logistic", "squared", "poisson", "absolute", "huber")


def _known_loss(name: str) -> str:
    if name not in (*LOSS_NAMES, GIVEN):
        raise ConfigError(field="local.loss", value=name, remedy=f"choose from {', '.join(LOSS_NAMES)}")
    return name


LossName = Annotated[str, AfterValidator(_known_loss)]


class Local(Descent):
    """What a client does in a round: gradient descent over its own examples, as torch.optim.SGD does it, from the
    weights of the server.

    It makes `epochs` passes over its examples, in batches of `batch_size`, or in `batches` batches of sizes as equal as
    can be, or, when neither is given, all at once. Every batch is one step: with the gradient of its mean loss,
    g = gradient + weight_decay * w + proximal * (w - w_server), then velocity = momentum * velocity + g and
    w = w - learning_rate * velocity. `loss` is a name (`incrowd.learning.LOSSES`); it follows from the labels unless it
    is given. With `label_shares` a client adds log(share of the class among its own labels + label_shares) to its
    logits, which is the right likelihood where clients' labels differ; the published model goes without.

    Before all that, there can be rounds that train nobody, each with a share of what all rounds together are told (the
    sum of 1 / noise^2). With `class_shares` the first asks each client for the shares of the classes among its labels;
    from then on a client's `label_shares` are seen against everyone's, so that the published model knows which classes
    are frequent (see `incrowd.learning.class_shares`). With `choice` the next asks each client whether what is known of
    pictures tells its examples apart better than their pixels do (see `incrowd.learning.choice`). With `centre` the
    next asks for the mean of each client's examples; from then on a linear model learns around it (see
    `incrowd.learning.centre`). A mean that is longer than `centre_length` is told as long as that, and the noise of the
    centre is proportional to it: examples of length one have no longer mean than one, and mostly a much shorter one.
    After all that there can be one more. With `calibration` a linear model learns apart from how frequent classes are,
    and the last round asks each client how strongly it should say what it has learnt beside that (see
    `incrowd.learning.calibration`).

    Edge cases: a client with fewer examples than a batch makes one smaller batch of them, with fewer examples than
    `batches` one batch of each; the last batch of a pass may be smaller. Both `batch_size` and `batches`, a
    `centre_length` without a `centre`, a `calibration` without `class_shares`, and shares that leave nothing for
    training: refused.
    """

    epochs: int = 1
    batch_size: int | None = None
    batches: int | None = None
    proximal: float = 0.0
    loss: LossName | None = None
    shuffle: bool = True
    label_shares: float | None = None
    class_shares: float | None = None
    choice: float | None = None
    centre: float | None = None
    centre_length: float = 1.0
    calibration: float | None = None

    def model_post_init(self, context: Any, /) -> None:
        """Refuse numbers that make no sense."""
        super().model_post_init(context)
        counts = ("epochs", *(name for name in ("batch_size", "batches") if getattr(self, name) is not None))
        _validate.count(**self.named("local", *counts))
        _validate.non_negative(**self.named("local", "proximal"))
        if self.label_shares is not None:
            _validate.positive(**self.named("local", "label_shares"))
        asked = {**self.sought, **self.closing}
        for share in asked:
            _validate.fraction(**self.named("local", share))
        if sum(asked.values()) >= 1:
            first, *others = (f"local.{share}" for share in asked)
            remedy = f"with {' and '.join(others)} nothing is left for training: give less"
            raise ConfigError(field=first, value=next(iter(asked.values())), remedy=remedy)
        if self.calibration is not None and self.class_shares is None:
            remedy = "it says how much is to be learnt beside local.class_shares: give those, too, or leave it out"
            raise ConfigError(field="local.calibration", value=self.calibration, remedy=remedy)
        _validate.positive(**self.named("local", "centre_length"))
        if self.centre is None and self.centre_length != 1:
            remedy = "it is of local.centre: give that, too"
            raise ConfigError(field="local.centre_length", value=self.centre_length, remedy=remedy)
        if self.batches is not None and self.batch_size is not None:
            raise ConfigError(field="local.batches", value=self.batches, remedy="give batch_size or batches, not both")

    @property
    def sought(self) -> dict[str, float]:
        """What is sought before anybody is trained, by the name of its setting: its share of all that is told."""
        named = {"class_shares": self.class_shares, "choice": self.choice, "centre": self.centre}
        return {name: share for name, share in named.items() if share is not None}

    @property
    def closing(self) -> dict[str, float]:
        """The same of what is asked for when everybody has been trained."""
        return {} if self.calibration is None else {"calibration": self.calibration}

    @property
    def plain(self) -> bool:
        """Whether a step is the gradient alone: no momentum, weight decay or proximal term."""
        return self.momentum == self.weight_decay == self.proximal == 0
