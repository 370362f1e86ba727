"""When a run ends before its last planned round: decided by figures that are public.

A decision is made of the rounds that are written down and of nothing else, so it is the same again after a crash, and
it costs nothing: who sees what a run released can make it as well.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from incrowd import _validate
from incrowd.data import Clients
from incrowd.errors import ConfigError
from incrowd.runs.database import Record
from incrowd.settings.section import Every, Section

Watched = Literal["loss", "accuracy"]


class Stop(Section):
    """When to end before the last planned round: `patience` or `target`, or both; a run without them goes to its end.

    `watch` says which figure: the "loss" or the "accuracy" on the test examples that the server holds.

    With `patience` it is over when so many reports, one after the other, were not better than the best before them;
    better means by more than `least`. With `target` it is over when the figure is as good as that.

    Guarantee: no round is charged after the one whose report decides, and what the plan has left is given back. The
    published model is that of the last round.
    """

    watch: Watched = "loss"
    patience: Every | None = None
    least: float = 0.0
    target: float | None = None

    def model_post_init(self, context: object, /) -> None:
        """Refuse numbers that could not decide anything."""
        _validate.non_negative(**{"stop.least": self.least})
        if self.target is not None and self.watch != "loss" and not 0 < self.target <= 1:
            remedy = "the share that is right: give a number above 0 and at most 1"
            raise ConfigError(field="stop.target", value=self.target, remedy=remedy)

    @property
    def wanted(self) -> bool:
        """Whether anything could end the run."""
        return self.patience is not None or self.target is not None


def check_watched(stop: Stop, data: Clients) -> None:
    """The figure that is watched is there, and is public (`ConfigError`)."""
    if not stop.wanted:
        return
    if data.test is None:
        remedy = "there are no test examples: give public ones"
        raise ConfigError(field="stop.watch", value=stop.watch, remedy=remedy)
    if stop.watch == "accuracy" and data.examples.classes is None:
        raise ConfigError(field="stop.watch", value=stop.watch, remedy='the labels are numbers: watch = "loss"')


def decision(stop: Stop, records: Sequence[Record]) -> str | None:
    """Why a run is over after these rounds; None while it is not.

    Edge cases: rounds that were lost, or not measured, or whose figure is not finite, decide nothing.
    """
    best, waited = None, 0
    for number, figure in _figures(stop, records):
        if stop.target is not None and (figure <= stop.target if stop.watch == "loss" else figure >= stop.target):
            return f"{_named(stop)} is {figure:.4g} after round {number}, and {stop.target:g} was the target"
        better = best is None or (best - figure if stop.watch == "loss" else figure - best) > stop.least
        best, waited = (figure, 0) if better else (best, waited + 1)
        if stop.patience is not None and waited >= stop.patience:
            times = "1 report" if waited == 1 else f"{waited} reports in a row"
            return f"{_named(stop)} {best:.4g} was not bettered in {times}, the last after round {number}"
    return None


def _figures(stop: Stop, records: Sequence[Record]) -> Iterator[tuple[int, float]]:
    """What was measured, each figure with the number of rounds after which it was."""
    for record in records:
        figure = getattr(record, stop.watch)
        if figure is not None and not record.lost:
            yield record.round + 1, float(figure)


def _named(stop: Stop) -> str:
    return f"{stop.watch} on the test set"
