"""What a client does with its examples: the settings of local training."""

from dataclasses import dataclass

from incrowd import _validate
from incrowd.errors import ConfigError
from incrowd.learning.losses import CROSS_ENTROPY, Loss


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """Stochastic gradient descent on one client, as torch.optim.SGD does it, from the weights of the server.

    A client makes `epochs` passes over its examples, in batches of `batch_size`, or in `batches` batches of sizes as
    equal as can be, or, when neither is given, all at once. Every batch is one step: with the gradient of its mean
    loss, g = gradient + weight_decay * w + proximal * (w - w_server), then velocity = momentum * velocity + g and
    w = w - learning_rate * velocity.

    Edge cases: a client with fewer examples than a batch makes one smaller batch of them, with fewer examples than
    `batches` one batch of each; the last batch of a pass may be smaller. Both `batch_size` and `batches`: refused.
    """

    learning_rate: float
    epochs: int = 1
    batch_size: int | None = None
    batches: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0
    loss: Loss = CROSS_ENTROPY
    shuffle: bool = True

    def __post_init__(self) -> None:
        _validate.positive(learning_rate=self.learning_rate)
        _validate.count(epochs=self.epochs)
        _validate.non_negative(momentum=self.momentum, weight_decay=self.weight_decay, proximal=self.proximal)
        if self.momentum >= 1:
            raise ConfigError(field="momentum", value=self.momentum, remedy="give a number of at least 0 and below 1")
        if self.batch_size is not None:
            _validate.count(batch_size=self.batch_size)
        if self.batches is not None:
            _validate.count(batches=self.batches)
            if self.batch_size is not None:
                raise ConfigError(field="batches", value=self.batches, remedy="give batch_size or batches, not both")

    @property
    def plain(self) -> bool:
        """Whether a step is the gradient alone: no momentum, weight decay or proximal term."""
        return self.momentum == self.weight_decay == self.proximal == 0
