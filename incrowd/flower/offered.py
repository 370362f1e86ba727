"""What an offer says beside its plan: what is learned from, and the model, as everybody has to build it."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from incrowd.data import Columns
from incrowd.errors import SpecificationRefused
from incrowd.flower.offer import Offer
from incrowd.flower.silo_offer import SiloOffer
from incrowd.flower.work import RoundTask
from incrowd.learning import Model
from incrowd.runs.config import CommonSections
from incrowd.runs.data_config import Parties
from incrowd.runs.silo_work import SiloWork
from incrowd.runs.sources import enrolled
from incrowd.runs.work import ClientWork
from incrowd.settings import explained

_OF_THIS_MACHINE = {
    "data": {"enrolled", "folder", "test_file"},
    "model": {"folder"},
    "features": {"cache", "folder", "weights"},
}
"""What says where files are here, and is nobody else's business."""


class OfferedSections(CommonSections):
    """The sections of the settings that a party needs to build what is trained."""

    data: Parties

    def model_post_init(self, context: Any, /) -> None:
        """Refuse keys of single records."""
        self.check_unit("client")


class OfferedRecords(CommonSections):
    """The same of a silo, which learns from single records."""

    data: Parties

    def model_post_init(self, context: Any, /) -> None:
        """Refuse keys of whole clients."""
        self.check_unit("record")


AnySections = TypeVar("AnySections", bound=CommonSections)


def offer_of(work: ClientWork) -> Offer:
    """What a run offers to learn.

    Edge cases: a plan with the median clip is refused: nobody knows the norms of a cohort that trains elsewhere.
    """
    plan, data = work.plan, work.config.data
    of_parties = isinstance(data, Parties)
    settings = settings_of(work, sections=("model", "local", *(("data", "features") if of_parties else ())))
    offer = Offer(
        plan=plan,
        size=work.engine.size,
        columns=tuple(work.data.columns),
        settings=settings,
        parties=enrolled(data) if isinstance(data, Parties) else (),
    )
    RoundTask.stated(offer, 0, offer.clip)
    return offer


def sections_of(offer: Offer | SiloOffer, kind: type[AnySections]) -> AnySections:
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
        return kind.model_validate_json(json.dumps({**found, "data": _completed(found.get("data"))}))
    except ValidationError as error:
        raise explained(error, kind) from error


def columns_of(sections: CommonSections) -> Columns | None:
    """What the columns of everybody's table mean; None where examples are arrays."""
    data = sections.data
    return data.meaning().resolved(()) if isinstance(data, Parties) and not data.shape else None


def module_of(model: Model) -> dict[str, str]:
    """What tells a module from another: how torch shows it, and what is frozen in it."""
    trained, digest = set(model.layout.names), hashlib.sha256()
    for name, value in model.module.state_dict().items():
        if name not in trained:
            digest.update(f"{name} {tuple(value.shape)} {value.dtype} ".encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return {"form": " ".join(repr(model.module).split()), "frozen": digest.hexdigest()}


def settings_of(work: ClientWork | SiloWork, *, sections: tuple[str, ...]) -> Mapping[str, Any]:
    """What a run says in these sections that parties have to know."""
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
