"""Settings of the server's step along a released mean. All of it is post-processing, which is free."""

from typing import Any, Literal

from incrowd import _extensions, _validate
from incrowd.settings.section import Section

BUILT_IN = ("sgd", "momentum", "adam", "yogi")


class ServerOptimizer(Section):
    """The server's step along a released mean, whose norm is at most the clip's.

    `sgd` adds learning_rate times the mean. `momentum` adds the velocity v = momentum * v + mean. `adam` and `yogi` are
    adaptive (Reddi et al. 2021), without bias correction; they need an `adaptivity` well above 0. Any other `kind` is
    the name under which an installed package has an optimizer (entry points `incrowd.server_optimizers`). With `decay`
    "linear" the rate of round t out of T is learning_rate * (1 - t / T). With `average` "tail" the published weights
    are the mean over the last half of the rounds.

    Guarantee: the step uses released means alone, so it costs no privacy.
    """

    kind: str = "sgd"
    learning_rate: float = 1.0
    momentum: float = 0.9
    adaptivity: float = 1e-3
    decay: Literal["none", "linear"] = "none"
    average: Literal["none", "tail"] = "none"

    def model_post_init(self, context: Any, /) -> None:
        """Refuse impossible numbers and unknown optimizers."""
        _validate.positive(**self.named("server", "learning_rate", "adaptivity"))
        _validate.below_one(**self.named("server", "momentum"))
        if not self.built_in:
            _extensions.found("server_optimizers", self.kind, field="server.kind", known=BUILT_IN)

    @property
    def built_in(self) -> bool:
        """Whether the optimizer is incrowd's."""
        return self.kind in BUILT_IN

    def rate(self, round: int, rounds: int) -> float:
        """The learning rate of a round, counted from 0."""
        return self.learning_rate * (1 - round / rounds if self.decay == "linear" else 1.0)

    def counts(self, round: int, rounds: int) -> bool:
        """Whether the published average includes the weights after this round."""
        return self.average == "tail" and round >= rounds // 2
