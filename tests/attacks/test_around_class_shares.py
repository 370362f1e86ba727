"""Attack: the round that asks how frequent classes are, by a client who wants to say more, and by a server's offer."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from incrowd._random import Floats
from incrowd.errors import ConfigError, SpecificationRefused
from incrowd.flower.offer import Offer
from incrowd.flower.offered import offer_of
from incrowd.learning import ClientTensors, CohortEngine
from incrowd.privacy.mechanism.clipping import NormalisedClip
from incrowd.runs.run import Run
from tests.attacks.totals import total as released
from tests.flower.test_parties import KINDS, NAMES, SERVER, party
from tests.learning.cohorts import CLASSES, RANDOMNESS, SIZES
from tests.learning.test_class_shares import LOCAL, MODEL, uneven
from tests.runs.small import clients_of, seeded

EVERYONE = list(range(len(SIZES)))
OTHERS = [k for k in EVERYONE if k != 1]


def total(data: ClientTensors, number: int, there: list[int], *, above: float = 0.1) -> Floats:
    """See `totals`."""
    start = torch.cat([MODEL.initial(RANDOMNESS), torch.full((CLASSES,), above)])
    return released(CohortEngine(MODEL, data, LOCAL), start, number, there)


@pytest.mark.parametrize("kind", range(CLASSES))
@pytest.mark.parametrize("number", [0, 1])
def test_whoever_has_one_class_alone_says_no_more_than_the_bound(kind: int, number: int) -> None:
    data = uneven()
    data.labels[torch.as_tensor(data.examples(1), dtype=torch.int64)] = kind
    moved = total(data, number, EVERYONE) - total(data, number, OTHERS)
    assert np.linalg.norm(moved) <= NormalisedClip().clip_norm * (1 + 1e-6)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -5.0, 3e38])
def test_whatever_a_server_says_of_everyone_nobody_says_more_than_the_bound(odd: float) -> None:
    moved = total(uneven(), 1, EVERYONE, above=odd) - total(uneven(), 1, OTHERS, above=odd)
    assert np.linalg.norm(moved) <= NormalisedClip().clip_norm * (1 + 1e-6)


def test_what_one_client_has_changes_nobody_elses_part() -> None:
    data = uneven()
    data.labels[torch.as_tensor(data.examples(1), dtype=torch.int64)] = 4
    for number in (0, 1):
        assert np.array_equal(total(data, number, OTHERS), total(uneven(), number, OTHERS))


def test_control_everyone_says_something() -> None:
    for number in (0, 1):
        moved = total(uneven(), number, EVERYONE) - total(uneven(), number, OTHERS)
        assert np.linalg.norm(moved) == pytest.approx(NormalisedClip().clip_norm, rel=1e-4)


@pytest.mark.parametrize(("lie", "why"), [(0, "weights"), (1, "weights"), (2**50, "more than this party allows")])
def test_an_offer_that_lies_about_how_many_there_are_is_refused(lie: int, why: str, tmp_path: Path) -> None:
    """Before anything is reserved, so that the honest offer is still accepted: the control."""
    work = clients_of(Run.create(seeded("data.clients=3", *KINDS["class shares"]), tmp_path / "run"))
    honest = replace(offer_of(work), parties=NAMES)
    member = party(tmp_path, work, 0)
    with pytest.raises(SpecificationRefused, match=why):
        member.accept(replace(honest, settings={**honest.settings, "beside": lie}).to_bytes(SERVER))
    member.accept(honest.to_bytes(SERVER))


@pytest.mark.parametrize("wrong", ["many", -1, 1.5, None])
def test_an_offer_names_a_whole_number_of_them(wrong: object, tmp_path: Path) -> None:
    work = clients_of(Run.create(seeded("data.clients=3", *KINDS["class shares"]), tmp_path / "run"))
    form = offer_of(work).to_json()
    with pytest.raises(ConfigError, match="beside"):
        Offer.from_json({**form, "settings": {**form["settings"], "beside": wrong}})
