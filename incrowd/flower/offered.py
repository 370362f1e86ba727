"""What an offer says beside its plan: what is learned from, and the model, as everybody has to build it."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from incrowd.data import Columns, Examples
from incrowd.data.stand_in import made_up_array, made_up_row
from incrowd.errors import ConfigError, SpecificationRefused
from incrowd.flower.offer import Offer
from incrowd.flower.work import RoundTask
from incrowd.learning import Model
from incrowd.privacy.plan.correlated_plan import CorrelatedPlan
from incrowd.privacy.plan.plan import Plan
from incrowd.runs.build import enrolled
from incrowd.runs.client_work import ClientWork
from incrowd.runs.config import CommonSections, FunctionModel
from incrowd.runs.data_config import Parties
from incrowd.settings.explained import explained
from incrowd.settings.local import Local

_OF_THIS_MACHINE = {"data": {"enrolled", "folder", "test_file"}, "model": {"folder"}, "features": {"cache"}}
"""What says where files are here, and is nobody else's business."""


class OfferedSections(CommonSections):
    """The sections of the settings that a party needs to build what is trained."""

    data: Parties
    local: Local = Local()


def offer_of(work: ClientWork) -> Offer:
    """What a run offers to learn.

    Edge cases: a plan with the median clip is refused: nobody knows the norms of a cohort that trains elsewhere.
    """
    plan, data = work.plan, work.config.data
    if not isinstance(plan, Plan | CorrelatedPlan):
        raise ConfigError(field="plan", value=type(plan).__name__, remedy="give a Plan or a CorrelatedPlan")
    of_parties = isinstance(data, Parties)
    offer = Offer(
        plan=plan,
        size=work.model.size,
        columns=tuple(work.data.columns),
        settings=_settings(work, sections=("model", "local", *(("data", "features") if of_parties else ()))),
        parties=enrolled(data) if isinstance(data, Parties) else (),
    )
    RoundTask.stated(offer, 0, offer.clip)
    return offer


def sections_of(offer: Offer) -> OfferedSections:
    """What an offer says.

    Edge cases: an offer of another kind, or of a later version: `ConfigError`; one that names files or folders of
    whoever reads it: `SpecificationRefused`.
    """
    for section, names in _OF_THIS_MACHINE.items():
        given = offer.settings.get(section)
        if isinstance(given, Mapping) and any(given.get(name) is not None for name in names):
            raise SpecificationRefused(f"the offer names files of this machine in [{section}]")
    found = {name: offer.settings[name] for name in ("data", "features", "model", "local") if name in offer.settings}
    try:
        return OfferedSections.model_validate_json(json.dumps({**found, "data": _completed(found.get("data"))}))
    except ValidationError as error:
        raise explained(error, OfferedSections) from error


def columns_of(sections: OfferedSections) -> Columns | None:
    """What the columns of everybody's table mean; None where examples are arrays."""
    return None if sections.data.shape else sections.data.meaning().resolved(())


def made_up(sections: OfferedSections) -> Examples:
    """An example that nobody has."""
    columns, data = columns_of(sections), sections.data
    if columns is not None:
        return made_up_row(columns)
    return made_up_array(data.shape, data.type, classes=data.classes_of_arrays, scale=data.scale, offset=data.offset)


def module_of(model: Model) -> dict[str, str]:
    """What tells a module from another: how torch shows it, and what is frozen in it."""
    trained, digest = set(model.layout.names), hashlib.sha256()
    for name, value in model.module.state_dict().items():
        if name not in trained:
            digest.update(f"{name} {tuple(value.shape)} {value.dtype} ".encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return {"form": " ".join(repr(model.module).split()), "frozen": digest.hexdigest()}


def _settings(work: ClientWork, *, sections: tuple[str, ...]) -> Mapping[str, Any]:
    settings = work.config.model_dump(mode="json")
    if "data" in sections:  # canonical JSON does not keep the order of columns, so it is said
        settings["data"]["features"] = list(work.data.columns)
    found = {
        section: {
            key: value for key, value in settings[section].items() if key not in _OF_THIS_MACHINE.get(section, ())
        }
        for section in sections
    }
    return {**found, "module": module_of(work.model)}


def _completed(data: object) -> object:
    """The section as the settings have it: where enrolments lie is the server's own business."""
    return {**data, "enrolled": "-"} if isinstance(data, Mapping) else data


def own_function(sections: OfferedSections, folder: str | None) -> OfferedSections:
    """The same, whose module's function is imported from a folder of this machine."""
    if not isinstance(sections.model, FunctionModel):
        return sections
    return sections.replaced(model=sections.model.replaced(folder=folder))
