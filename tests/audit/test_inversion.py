"""Pictures come out of an update as they went in, and do not where a client noises for itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd.audit.audit import Effort, audit_work
from incrowd.audit.inversion import fired, inverted, plan_to_show, seen
from incrowd.audit.reading import draw, reading
from incrowd.errors import ConfigError
from incrowd.runs.client_work import ClientWork, assemble
from incrowd.runs.config import Config
from incrowd.runs.settings import parse

pytestmark = pytest.mark.usefixtures("one_thread")


def federation(**sections: dict[str, Any]) -> ClientWork:
    wanted: dict[str, Any] = {
        "data": {"clients": 100},
        "model": {"kind": "linear", "bias": False},
        "local": {"learning_rate": 1.0},
        "privacy": {"epsilon": 8.0, "delta": 1e-3, "rounds": 5},
        "run": {"randomness": "seeded", "seed": 1},
    }
    config = parse({name: {**wanted.get(name, {}), **sections.get(name, {})} for name in {*wanted, *sections}})
    assert isinstance(config, Config)
    return assemble(config)


def test_an_update_without_noise_is_the_client_s_pictures() -> None:
    found = inverted(federation(), client=3, seed=1)
    assert found.alike[0] == pytest.approx(1.0, abs=1e-6)
    assert found.alike[1] < 0.8
    assert len(found.classes) == len(found.originals) == len(found.from_update) == len(found.from_release)


def test_noise_of_the_client_s_own_hides_them() -> None:
    found = inverted(federation(privacy={"place": "local"}), client=3, seed=1)
    assert abs(found.alike[0]) < 0.4  # of some eight pictures of 64 pixels, noise alone is alike by .045 on average


def test_units_of_a_perceptron_tell_pictures_one_by_one() -> None:
    found = fired(
        federation(model={"kind": "mlp", "bias": True}, local={"learning_rate": 0.1}), client=3, other=4, seed=1
    )
    assert found.alike[0] > 0.97
    assert found.by_chance < 0.9  # what another client's update tells, of digits that are like each other
    assert found.alike[1] < found.alike[0] - 0.1
    assert found.originals.shape == found.from_update.shape == found.from_release.shape


def test_noise_of_the_client_s_own_hides_them_from_a_perceptron_too() -> None:
    changed: dict[str, dict[str, Any]] = {"model": {"kind": "mlp", "bias": True}, "privacy": {"place": "local"}}
    found = fired(federation(**changed), client=3, other=4, seed=1)
    assert found.alike[0] < 0.6  # the best of two hundred pictures of noise
    assert abs(found.alike[0] - found.by_chance) < 0.1


@pytest.mark.parametrize("model", [{"kind": "linear", "bias": True}, {"kind": "mlp", "bias": False}])
def test_units_without_a_bias_or_behind_nothing_are_refused(model: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"model\.kind"):
        fired(federation(model=model), client=0, other=1, seed=1)


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"model": {"kind": "mlp"}}, "model.kind"),
        ({"privacy": {"noise": "correlated", "groups": 4}}, "privacy.noise"),
    ],
)
def test_what_cannot_be_read_so_is_refused(sections: dict[str, dict[str, Any]], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        inverted(federation(**sections), client=0, seed=1)


MODELS: dict[str, dict[str, Any]] = {
    "a linear model": {"kind": "linear", "bias": False},
    "a perceptron": {"kind": "mlp", "bias": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_an_update_says_whose_it_is_and_the_released_mean_hardly(kind: str, tmp_path: Path) -> None:
    model, rate = MODELS[kind], 1.0 if kind == "a linear model" else 0.1
    work = federation(model=model, local={"learning_rate": rate})
    (update, release), strips = reading(work, clients=20, seed=1)
    assert update.auc is not None
    assert update.auc > 0.95
    assert update.claimed is None  # the server is trusted with it
    assert release.auc is not None
    assert release.auc < 0.85
    assert release.claimed == pytest.approx(8.0)
    assert release.holds
    assert [len(strip.pictures) for strip in strips] == [len(strips[0].pictures)] * 3
    draw(tmp_path / "read.png", strips)
    assert (tmp_path / "read.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_nobody_says_whose_an_update_is_that_has_noise_of_its_own() -> None:
    (update, _), strips = reading(federation(privacy={"place": "local"}), clients=40, seed=1)
    assert update.auc == pytest.approx(0.5, abs=0.25)  # 80 of them err by .065
    assert "with noise of its own" in strips[1].title


@pytest.mark.slow
def test_an_audit_reads_what_can_be_read_and_says_where_nothing_can() -> None:
    effort = Effort(repeats=2, people=True, quick=True)
    few = {"data": {"clients": 20}, "privacy": {"rounds": 2}}
    found = audit_work(federation(**few), effort=effort)
    assert sum("Read out of" in one.attack for one in found.findings) == 2
    assert len(found.strips) == 3
    assert "strips" not in found.to_json()
    strokes = audit_work(federation(**few, features={"name": "strokes"}), effort=effort)
    assert not any("Read out of" in one.attack for one in strokes.findings)
    assert any("on grey pixels alone" in note for note in strokes.notes)
    with pytest.raises(ConfigError, match="grey pixels"):
        reading(federation(features={"name": "strokes"}), clients=2, seed=0)


def test_the_released_mean_has_nothing_of_who_is_left_out() -> None:
    work = federation(privacy={"epsilon": 1e6})
    plan = plan_to_show(work)
    start = np.zeros(work.model.size)
    update, inside = seen(work, plan, start, client=3, seed=1)
    _, outside = seen(work, plan, start, client=3, seed=1, there=False)
    moved = 100 * (inside - outside)  # the same noise is on both
    clipped = update / np.linalg.norm(update)
    assert moved == pytest.approx(clipped, abs=1e-3)
