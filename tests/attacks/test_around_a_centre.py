"""Attack: the round for a centre, by a client who wants to say more than the others, and by a server's offer."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from incrowd._random import Floats
from incrowd.data.inputs import single
from incrowd.errors import ConfigError, SpecificationRefused
from incrowd.flower.offer import Offer
from incrowd.flower.offered import offer_of
from incrowd.learning import ClientTensors, CohortEngine
from incrowd.privacy.mechanism.clipping import NormalisedClip
from incrowd.runs.run import Run
from tests.attacks.totals import total as released
from tests.federated.test_centre import CLIENTS
from tests.flower.test_parties import KINDS, NAMES, SERVER, party
from tests.learning.cohorts import clients
from tests.learning.test_centre import LOCAL, MODEL, start, unit
from tests.runs.small import clients_of, seeded

ODD = {"huge": 1e30, "no number": float("nan"), "nothing": 0.0, "tiny": 1e-30, "beyond floats": float("inf")}


def with_odd(data: ClientTensors, odd: float) -> ClientTensors:
    """The same, but of one client whose examples are all odd."""
    features = single(data.features).clone()
    features[torch.as_tensor(data.examples(1), dtype=torch.int64)] = odd
    return replace(data, features=features)


def total(data: ClientTensors, number: int, there: list[int], *, length: float = 1.0) -> Floats:
    """See `totals`."""
    engine = CohortEngine(MODEL, data, LOCAL.replaced(centre_length=length))
    return released(engine, start(unit(clients())), number, there)


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize(("number", "length"), [(0, 1.0), (1, 1.0), (0, 0.5), (0, 1e-300), (0, 1e300)])
def test_nobody_says_more_than_the_bound(odd: float, number: int, length: float) -> None:
    data = with_odd(unit(clients()), odd)
    everyone = list(range(CLIENTS))
    others = [k for k in everyone if k != 1]
    moved = total(data, number, everyone, length=length) - total(data, number, others, length=length)
    assert np.linalg.norm(moved) <= NormalisedClip().clip_norm * (1 + 1e-6)


def test_control_a_plain_mean_would_say_as_much_as_it_likes() -> None:
    data = with_odd(unit(clients()), 1e30)
    mean = single(data.features)[torch.as_tensor(data.examples(1), dtype=torch.int64)].double().mean(0)
    assert float(torch.linalg.vector_norm(mean)) > 1e29


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_an_odd_client_changes_nobody_elses_part(odd: float) -> None:
    data = unit(clients())
    others = [k for k in range(CLIENTS) if k != 1]
    for number in (0, 1):
        assert np.array_equal(total(with_odd(data, odd), number, others), total(data, number, others))


LIES = {"none": 0, "fewer": 1, "more": 500}


@pytest.mark.parametrize("lie", LIES)
def test_an_offer_that_lies_about_the_centre_is_refused_before_anything_is_reserved(lie: str, tmp_path: Path) -> None:
    work = clients_of(Run.create(seeded("data.clients=3", *KINDS["centre"]), tmp_path / "run"))
    honest = replace(offer_of(work), parties=NAMES)
    lying = replace(honest, settings={**honest.settings, "beside": LIES[lie]})
    member = party(tmp_path, work, 0)
    with pytest.raises(SpecificationRefused, match="weights"):
        member.accept(lying.to_bytes(SERVER))
    member.accept(honest.to_bytes(SERVER))


def test_an_offer_of_a_boundless_centre_is_refused_by_its_number(tmp_path: Path) -> None:
    work = clients_of(Run.create(seeded("data.clients=3", *KINDS["centre"]), tmp_path / "run"))
    honest = replace(offer_of(work), parties=NAMES)
    lying = replace(honest, settings={**honest.settings, "beside": 2**50})
    with pytest.raises(SpecificationRefused, match="more than this party allows"):
        party(tmp_path, work, 0).accept(lying.to_bytes(SERVER))


@pytest.mark.parametrize("wrong", ["many", -1, 1.5, None])
def test_a_centre_is_of_a_whole_number_of_features(wrong: object, tmp_path: Path) -> None:
    work = clients_of(Run.create(seeded("data.clients=3", *KINDS["centre"]), tmp_path / "run"))
    form = offer_of(work).to_json()
    with pytest.raises(ConfigError, match="beside"):
        Offer.from_json({**form, "settings": {**form["settings"], "beside": wrong}})
