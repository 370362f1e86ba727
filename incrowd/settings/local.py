"""What a client does with its examples in a round."""

from typing import Annotated, Any, Literal

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
    w = w - learning_rate * velocity; `proximal` is FedProx. With `optimizer` "adam" a step is that of torch.optim.Adam
    along g, whose moments begin anew in each round. With `algorithm` "scaffold" each step of SGD adds all clients' mean
    gradient and subtracts the client's own (see `incrowd.learning.local_algorithms.Scaffold`). `loss` is a name
    (`incrowd.learning.LOSSES`); it follows from the labels unless it is given. With `label_shares` a client adds
    log(share of the class among its own labels + label_shares) to its logits, which is the right likelihood where
    clients' labels differ; the published model goes without.

    With `label_distribution` the first round trains no client: it asks each for its label distribution, and gets this
    share of the sum of 1 / noise^2 over all rounds. The published model adds the logarithm of the mean to its logits,
    so that it knows which classes are frequent (`incrowd.learning.label_shares`).

    Edge cases: a client with fewer examples than a batch makes one smaller batch of them, with fewer examples than
    `batches` one batch of each; the last batch of a pass may be smaller. Both `batch_size` and `batches`: refused, and
    so is momentum with Adam, which has its own.
    """

    optimizer: Literal["sgd", "adam"] = "sgd"
    algorithm: Literal["fedavg", "scaffold"] = "fedavg"
    epochs: int = 1
    batch_size: int | None = None
    batches: int | None = None
    proximal: float = 0.0
    loss: LossName | None = None
    shuffle: bool = True
    label_shares: float | None = None
    label_distribution: float | None = None

    def model_post_init(self, context: Any, /) -> None:
        """Refuse numbers that make no sense."""
        super().model_post_init(context)
        counts = ("epochs", *(name for name in ("batch_size", "batches") if getattr(self, name) is not None))
        _validate.count(**self.named("local", *counts))
        _validate.non_negative(**self.named("local", "proximal"))
        if self.optimizer == "adam" and self.momentum:
            raise ConfigError(field="local.momentum", value=self.momentum, remedy="Adam has its own: leave it out")
        if self.algorithm == "scaffold" and self.optimizer != "sgd":
            raise ConfigError(field="local.optimizer", value=self.optimizer, remedy="scaffold takes steps of sgd")
        if self.label_shares is not None:
            _validate.positive(**self.named("local", "label_shares"))
        if self.label_distribution is not None:
            _validate.fraction(**self.named("local", "label_distribution"))
        if self.batches is not None and self.batch_size is not None:
            raise ConfigError(field="local.batches", value=self.batches, remedy="give batch_size or batches, not both")

    @property
    def plain(self) -> bool:
        """Whether a step is the gradient alone: no momentum, weight decay or proximal term."""
        return self.optimizer == "sgd" and self.momentum == self.weight_decay == self.proximal == 0
