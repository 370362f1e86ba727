"""The front door: a module, clients, a promise, and a folder for the run."""

import copy
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from incrowd.data.clients import Clients
from incrowd.errors import ConfigError
from incrowd.learning.losses import Loss, as_loss
from incrowd.learning.models import Model
from incrowd.privacy.plan.sampling import Schedule
from incrowd.runs.advice import advice, verdict
from incrowd.runs.config import Config, GivenModel, Private, RunOptions, tables
from incrowd.runs.data_config import GivenData, Parties, Table
from incrowd.runs.folder import DATABASE, Summary
from incrowd.runs.predict import Result
from incrowd.runs.recipes import config_of, with_recipe
from incrowd.runs.run import OwnLoop, Run
from incrowd.runs.sources import NOTHING, Given
from incrowd.runs.trackers import progress as shown
from incrowd.runs.trackers import say
from incrowd.settings import GIVEN, Local, Section, ServerOptimizer
from incrowd.types import Tracker

LossLike = str | Loss | nn.Module | Callable[[Tensor, Tensor], Tensor]


class Federation:
    """Clients who train one model together under a promise, simulated on this machine.

    `data` are `Clients`, a `Table` in a file, or `Parties` elsewhere (`incrowd.parties.server`). `module` is any module
    of torch whose gradient is per example; it starts with its own weights, and its frozen part stays as it is. `local`
    is the training of a client, `server` the server's step along a mean, and `run` the way to execute and report.
    `loss` is a name, a function of outputs and labels that gives the mean over the examples, or a loss of torch; unless
    it is given it follows from the labels.

    Guarantee: `train` on the same folder goes on where it stopped, and spends nothing twice.
    """

    settings: Config
    given: Given
    schedule: Schedule | None

    def __init__(
        self,
        module: nn.Module | Model,
        data: Clients | Table | Parties,
        *,
        privacy: Private,
        local: Local | None = None,
        loss: LossLike | None = None,
        server: ServerOptimizer | None = None,
        run: RunOptions | None = None,
    ) -> None:
        _check(data, "data", Clients, Table, Parties)
        model = _model(module)
        sections = _sections(privacy=privacy, local=local, server=server, run=run)
        its_data = GivenData() if isinstance(data, Clients) else data
        self.settings = Config(data=its_data, model=GivenModel(), **sections)
        self.given = Given(data=data if isinstance(data, Clients) else None, model=model)
        self.schedule = None
        if loss is not None:
            self._take(loss)

    @classmethod
    def by_recipe(
        cls,
        recipe: str,
        data: Clients | Table,
        *,
        privacy: Private,
        module: nn.Module | None = None,
        local: Local | None = None,
        server: ServerOptimizer | None = None,
        run: RunOptions | None = None,
    ) -> "Federation":
        """A federation with settings that suit it (`incrowd.runs.recipes`), found from public facts about it.

        `privacy` states the budget, and more if it likes: stated values stay as they are. The name of a loss is a part
        of `local`. With a `module` the recipe says how to train it.
        """
        _check(data, "data", Clients, Table)
        sections = _sections(privacy=privacy, local=local, server=server, run=run)
        if privacy.unit == "record":
            remedy = "a recipe in Python is for whole clients: of silos, name it in the settings"
            raise ConfigError(field="privacy.unit", value="record", remedy=remedy)
        given = Given(
            data=data if isinstance(data, Clients) else None, model=None if module is None else _model(module)
        )
        stated = {name: section.model_dump(exclude_unset=True) for name, section in sections.items()}
        stated["data"] = {"name": "given"}
        if isinstance(data, Table):
            stated["data"] = data.model_dump(exclude_unset=True) | {"name": data.name}
        if module is not None:
            stated["model"] = {"kind": "given"}
        federation = cls.from_tables(with_recipe(stated, recipe, given=given))
        federation.given = given
        return federation

    @classmethod
    def from_settings(
        cls, path: Path | str | None = None, *, overrides: Sequence[str] = (), data: Path | str | None = None
    ) -> "Federation":
        """The federation of a TOML file, with `key=value` overrides and another data folder; without a file, the
        demonstration.
        """
        return cls.from_tables(tables(path, overrides=overrides, data=data))

    @classmethod
    def from_tables(cls, settings: Mapping[str, Any]) -> "Federation":
        """The federation that the tables of a TOML file describe."""
        if not isinstance(settings, Mapping):
            raise ConfigError(
                field="settings", value=settings, remedy="give the tables of a TOML file, a dict of dicts"
            )
        federation = cls.__new__(cls)
        federation.settings, federation.given, federation.schedule = config_of(settings), NOTHING, None
        return federation

    def scheduled(self, schedule: Schedule) -> "Federation":
        """The same, with cohorts and noise of the rounds from a schedule: only whether it fits the budget is asked."""
        same = copy.copy(self)
        same.schedule = schedule
        return same

    def start(self, folder: Path | str) -> Run:
        """A new run in a folder; nothing is spent yet."""
        return Run.create(self.settings, folder, given=self.given, schedule=self.schedule)

    def train(self, folder: Path | str, *, progress: bool = True, watchers: Sequence[Tracker] = ()) -> Result:
        """Train to the end, from wherever the run in this folder stands, and give the result."""
        if not isinstance(folder, str | Path):
            raise ConfigError(field="folder", value=folder, remedy="give the path of a folder for the run")
        run = self.run_in(Path(folder))
        say(advice(run.work) if progress else (), sys.stderr)
        summary = run.train([*([shown(sys.stderr)] if progress else []), *watchers])
        say(verdict(summary) if progress else (), sys.stderr)
        return Result.of(run)

    def session(self, folder: Path | str, *, progress: bool = True, watchers: Sequence[Tracker] = ()) -> OwnLoop:
        """The rounds of the run in a folder, new or begun, for a training loop of your own.

        >>> with federation.session("out/own") as session:  # doctest: +SKIP
        ...     for now in session:
        ...         now.submit({client: trained(now.module(), *now.examples(client)) for client in now.cohort})
        >>> result = federation.result("out/own")  # doctest: +SKIP
        """
        return OwnLoop(self.run_in(Path(folder)), [*([shown(sys.stderr)] if progress else []), *watchers])

    def result(self, folder: Path | str) -> Result:
        """The result of the finished run in a folder."""
        return Result.of(self.run_in(Path(folder)))

    def evaluate(
        self,
        folder: Path | str,
        *,
        epsilon: float,
        delta: float | None = None,
        loss_bound: float | None = None,
        by_class: bool = False,
    ) -> Summary:
        """Measure the model of the finished run in a folder on the clients' own examples, noised and charged to the
        ledger of the data: see `incrowd.runs.evaluation`.
        """
        from incrowd.runs.evaluation import EvaluationConfig

        wanted = EvaluationConfig(epsilon=epsilon, delta=delta, loss_bound=loss_bound, by_class=by_class)
        return self.run_in(Path(folder)).evaluate(wanted)

    def run_in(self, folder: Path) -> Run:
        """The run that was begun in a folder, or a new one."""
        if not (folder / DATABASE).exists():
            return self.start(folder)
        run = Run.open(folder, given=self.given)
        wanted, kept = (json.loads(each.model_dump_json()) for each in (self.settings, run.config))
        for section, values in wanted.items():
            if values != kept.get(section):
                remedy = f"a run with {_differing(section, values, kept.get(section))} was begun there: name another"
                raise ConfigError(field="folder", value=str(folder), remedy=remedy)
        steps = None if self.schedule is None else [asdict(step) for step in self.schedule.steps]
        if steps is not None and run.settings.get("schedule") != steps:
            remedy = "a run with another schedule was begun there: name another"
            raise ConfigError(field="folder", value=str(folder), remedy=remedy)
        return run

    def _take(self, loss: LossLike) -> None:
        local = self.settings.local
        if local.loss is not None:
            raise ConfigError(field="loss", value=local.loss, remedy="it is stated twice: leave out one of the two")
        named = local.replaced(loss=loss if isinstance(loss, str) else GIVEN)
        self.settings = self.settings.model_copy(update={"local": named})
        if not isinstance(loss, str):
            self.given = replace(self.given, loss=as_loss(loss))


_KINDS = {"privacy": Private, "local": Local, "server": ServerOptimizer, "run": RunOptions}


def _sections(*, privacy: Private, **others: Section | None) -> dict[str, Any]:
    """The sections that are given, each of its kind."""
    given = {"privacy": privacy, **{name: value for name, value in others.items() if value is not None}}
    for name, value in given.items():
        _check(value, name, _KINDS[name])
    return given


def _model(module: Any) -> Model:
    if isinstance(module, Model):
        return module
    if not isinstance(module, nn.Module):
        raise ConfigError(field="module", value=type(module).__name__, remedy="give a torch.nn.Module")
    return Model(module)


def _check(value: object, field: str, *kinds: type) -> None:
    """Refuse a value of another kind."""
    if not isinstance(value, kinds):
        named = " or ".join(f"incrowd.{kind.__name__}" for kind in kinds)
        raise ConfigError(field=field, value=type(value).__name__, remedy=f"give {named}")


def _differing(section: str, wanted: Any, kept: Any) -> str:
    """The first setting that is another one, and its old value."""
    if isinstance(wanted, dict) and isinstance(kept, dict):
        for name in wanted:
            if wanted[name] != kept.get(name):
                return f"{section}.{name} = {kept.get(name)!r}"
    return f"another {section}"
