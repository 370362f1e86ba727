"""The front door: a module, clients, a promise, and a folder in which it is kept."""

import copy
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from pydantic import BaseModel
from torch import Tensor, nn

from incrowd.data import Clients
from incrowd.errors import ConfigError
from incrowd.learning import Loss, Model
from incrowd.learning.losses import as_loss
from incrowd.privacy.plan.sampling import Schedule
from incrowd.runs.build import NOTHING, Given
from incrowd.runs.config import Config, GivenModel, Private, RunOptions
from incrowd.runs.data_config import GivenData, Parties, Table
from incrowd.runs.evaluation import EvaluationConfig
from incrowd.runs.folder import DATABASE, Summary
from incrowd.runs.own_loop import OwnLoop
from incrowd.runs.progress import progress as shown
from incrowd.runs.progress import say
from incrowd.runs.recipes import config_of, with_recipe
from incrowd.runs.result import Result
from incrowd.runs.run import Run
from incrowd.runs.settings import tables
from incrowd.runs.silo_config import LocalRecords, PrivateRecords, SiloConfig, SiloRunOptions
from incrowd.runs.stopping import Stop
from incrowd.runs.trackers import Tracker
from incrowd.settings.local import GIVEN, Local
from incrowd.settings.server import ServerOptimizer

LossLike = str | Loss | nn.Module | Callable[[Tensor, Tensor], Tensor]


class Sections(TypedDict, total=False):
    """What a federation may be told beside what it promises: what the server does with a mean, how it is executed and
    reported, and when the rounds may end early.
    """

    server: ServerOptimizer | None
    run: RunOptions | SiloRunOptions | None
    stop: Stop | None


class Federation:
    """Clients who train one model together under a promise, simulated on this machine.

    `data` are `Clients`, or a `Table` in a file, which is read when a run begins; or `Parties` elsewhere, who are asked
    over a network (`incrowd.flower.serve`). `module` is any module of torch whose
    gradient is per example; it starts with its own weights, and its frozen part stays as it is. With `Private` whole
    clients are protected, with `PrivateRecords` each record of every client, who is then a silo with a ledger and a
    budget of its own. `loss` is a name, a function of outputs and labels that gives the mean over the examples, or a
    loss of torch; unless it is given it follows from the labels. There may be more sections: `server`
    (`ServerOptimizer`), `run` (`RunOptions`, of silos `SiloRunOptions`) and `stop` (`Stop`), which says when the rounds
    end early.

    Guarantee: `train` on the same folder goes on where it stopped, and spends nothing twice.

    Edge cases: whatever cannot be used is a `ConfigError` or a `DataError`, before anything is written or spent. A
    folder in which a run with other settings, another module or other data was begun is refused.
    """

    def __init__(
        self,
        module: nn.Module | Model,
        data: Clients | Table | Parties,
        *,
        privacy: Private | PrivateRecords,
        local: Local | LocalRecords | None = None,
        loss: LossLike | None = None,
        **sections: Unpack[Sections],
    ) -> None:
        _a(data, (Clients, Table, Parties), "data")
        model = module if isinstance(module, Model) else Model(_module(module))
        given: dict[str, Any] = {"local": local, **sections}
        of_records = isinstance(privacy, PrivateRecords)
        kind = SiloConfig if of_records else Config
        kinds: dict[str, type] = {
            "local": LocalRecords if of_records else Local,
            "server": ServerOptimizer,
            "run": SiloRunOptions if of_records else RunOptions,
            "stop": Stop,
        }
        for name, value in given.items():
            if name not in kinds:
                known = ", ".join(("privacy", "local", "loss", *Sections.__annotations__))
                raise ConfigError(field=name, value=value, remedy=f"there is no such argument; known are {known}")
            _a(value, (type(None), kinds[name]), name)
        self.settings: Config | SiloConfig = kind(
            data=GivenData() if isinstance(data, Clients) else data,
            model=GivenModel(),
            privacy=_a(privacy, (Private, PrivateRecords), "privacy"),
            **{name: value for name, value in given.items() if value is not None},
        )
        self.schedule: Schedule | None = None

        self.given = Given(data=data if isinstance(data, Clients) else None, model=model)
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
        **sections: Unpack[Sections],
    ) -> "Federation":
        """A federation with settings that suit it (`incrowd.runs.recipes`), found from what everybody may know of it.

        `privacy` states the budget, and more if it likes: what is stated here stays as it is. With a `module` the
        recipe says how to train it.
        """
        _a(data, (Clients, Table), "data")
        _a(privacy, (Private,), "privacy")
        model = None if module is None else Model(_module(module))
        given = Given(data=data if isinstance(data, Clients) else None, model=model)
        kinds: dict[str, type] = {
            "privacy": Private,
            "local": Local,
            "server": ServerOptimizer,
            "run": RunOptions,
            "stop": Stop,
        }
        stated: dict[str, Any] = {"data": {"name": "given"} if isinstance(data, Clients) else _stated(data)}
        if model is not None:
            stated["model"] = {"kind": "given"}
        for name, value in {"privacy": privacy, "local": local, **sections}.items():
            if name not in kinds:
                remedy = f"there is no such argument; known are module, {', '.join(kinds)}"
                named = "a recipe takes its name, as a part of local: local = Local(loss = ...)"
                raise ConfigError(field=name, value=value, remedy=named if name == "loss" else remedy)
            section = _a(value, (type(None), kinds[name]), name)
            if section is not None:
                stated[name] = _stated(section)
        federation = cls.from_tables(with_recipe(stated, recipe, given=given))
        federation.given = given
        return federation

    @classmethod
    def from_settings(
        cls, path: Path | str | None = None, *, overrides: Sequence[str] = (), data: Path | str | None = None
    ) -> "Federation":
        """What a TOML file describes, with `key=value` overrides and another data folder; without a file, the
        demonstration.
        """
        return cls.from_tables(tables(path, overrides=overrides, data=data))

    @classmethod
    def from_tables(cls, settings: Mapping[str, Any]) -> "Federation":
        """What the tables of a TOML file describe."""
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
        say(run.advice() if progress else (), sys.stderr)
        summary = run.train([*([shown(sys.stderr)] if progress else []), *watchers])
        say(run.verdict(summary) if progress else (), sys.stderr)
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
        wanted = EvaluationConfig(epsilon=epsilon, delta=delta, loss_bound=loss_bound, by_class=by_class)
        return self.run_in(Path(folder)).evaluate(wanted)

    def run_in(self, folder: Path) -> Run:
        """The run that was begun in a folder, or a new one.

        Edge cases: one with other settings, another module or other data is refused (`ConfigError`).
        """
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
        name = loss if isinstance(loss, str) else GIVEN
        update = {"local": type(local)(**{**local.model_dump(), "loss": name})}
        self.settings = self.settings.model_copy(update=update)
        if not isinstance(loss, str):
            self.given = replace(self.given, loss=as_loss(loss))


def _stated(section: BaseModel) -> dict[str, Any]:
    """What somebody stated in a section, as a file would have it."""
    stated = section.model_dump(exclude_unset=True)
    return stated | ({"name": section.name} if isinstance(section, Table) else {})


def _module(module: Any) -> nn.Module:
    if not isinstance(module, nn.Module):
        raise ConfigError(field="module", value=type(module).__name__, remedy="give a torch.nn.Module")
    return module


def _a(value: Any, kinds: tuple[type, ...], field: str) -> Any:
    if not isinstance(value, kinds):
        named = (f"incrowd.{kind.__name__}" for kind in kinds if kind is not type(None))
        remedy = f"give {' or '.join(named)}"
        raise ConfigError(field=field, value=type(value).__name__, remedy=remedy)
    return value


def _differing(section: str, wanted: Any, kept: Any) -> str:
    """The first setting that is another one, and what it was."""
    if isinstance(wanted, dict) and isinstance(kept, dict):
        for name in wanted:
            if wanted[name] != kept.get(name):
                return f"{section}.{name} = {kept.get(name)!r}"
    return f"another {section}"
