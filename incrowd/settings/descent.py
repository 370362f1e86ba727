"""How gradients move weights."""

from typing import Any

from incrowd import _validate
from incrowd.settings.section import Section


class Descent(Section):
    """Stochastic gradient descent as torch.optim.SGD does it; the velocity starts at zero in each round."""

    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def model_post_init(self, context: Any, /) -> None:
        """Refuse numbers that make no sense."""
        _validate.positive(**self.named("local", "learning_rate"))
        _validate.non_negative(**self.named("local", "weight_decay"))
        _validate.below_one(**self.named("local", "momentum"))
