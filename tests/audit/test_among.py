"""Canaries among the real clients of a federation: what each adversary finds, and what only a whole training shows."""

from pathlib import Path

import numpy as np
import pytest

from incrowd.audit.among import MixedGame, canaries_among
from incrowd.audit.audit import Effort, audit_work
from incrowd.audit.wanted import audit
from incrowd.errors import ConfigError
from incrowd.privacy.mechanism.clipping import ElementwiseClip, PerLayerClip
from incrowd.privacy.plan.plan import Plan
from incrowd.runs.build import NOTHING
from incrowd.runs.client_work import ClientWork, assemble
from incrowd.runs.config import Config
from incrowd.runs.settings import load
from tests.audit.broken import longer_later, noise_is

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ["data.clients=40", "privacy.rounds=6", "privacy.epsilon=6"]
FEW = 12


def federation(*overrides: str) -> ClientWork:
    config = load(overrides=[*SMALL, *overrides])
    assert isinstance(config, Config)
    return assemble(config, given=NOTHING)


@pytest.mark.slow
def test_who_knows_more_finds_more_and_nobody_more_than_is_promised() -> None:
    found, checks = canaries_among(federation(), federations=40, seed=1)
    known, releases, _model = found
    assert all(check.holds for check in checks)
    assert all(one.holds and one.trials == 160 for one in found)
    assert [one.auc for one in found] == sorted((one.auc for one in found), key=float, reverse=True)  # type: ignore[arg-type]  # none is None
    assert known.lower_bound is not None
    assert 1.0 < known.lower_bound <= 6.0
    assert known.estimate == pytest.approx(6.0, abs=2.0)
    assert releases.auc is not None
    assert releases.auc > 0.6
    assert "4 canaries and 36 real clients, which learn to " in known.note
    assert float(known.note.split("learn to ")[1].split("%")[0]) > 60


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ["privacy.sampling=poisson", "privacy.cohort=20"],
        ["privacy.sampling=fixed", "privacy.cohort=20"],
        ["privacy.clip={kind='elementwise', limit=0.01}"],
        ["privacy.clip={kind='quantile', clip_norm=0.5}", "privacy.sampling=poisson", "privacy.cohort=20"],
        ["model={kind='mlp', hidden=[16]}", "privacy.clip={kind='per-layer', clip_norms=[1.0, 0.3]}"],
    ],
)
def test_real_federations_of_every_kind_pass(settings: list[str]) -> None:
    found, checks = canaries_among(federation(*settings), federations=4, seed=2)
    assert [check for check in checks if not check.holds] == []
    assert all(one.holds for one in found)


@pytest.mark.slow
def test_a_fault_of_late_rounds_shows_in_whole_trainings_alone() -> None:
    work = federation()
    with longer_later():
        assert audit_work(work, effort=Effort(repeats=2)).holds  # the control
        found = audit_work(work, effort=Effort(repeats=2, among=FEW))
    assert any("real clients in any round" in violation for violation in found.violations), found.violations
    assert audit_work(work, effort=Effort(repeats=2, among=FEW)).holds


@pytest.mark.slow
def test_noise_that_is_short_is_seen_among_real_clients() -> None:
    with noise_is(0.9)():
        _, checks = canaries_among(federation(), federations=FEW, seed=3)
    assert "noise of whole trainings" in [check.name for check in checks if not check.holds]


@pytest.mark.parametrize("settings", ["{kind='elementwise', limit=0.01}", "{kind='per-layer', clip_norms=[1.0, 0.3]}"])
def test_canaries_are_at_right_angles_where_each_number_or_layer_has_a_bound(settings: str) -> None:
    work = federation("data.clients=100", "model={kind='mlp', hidden=[16]}", f"privacy.clip={settings}")
    game = MixedGame(plan=work.plan, size=work.model.size, seed=5)
    assert game.canaries == (8 if isinstance(game.clip, ElementwiseClip) else 10)
    clipped = np.array([game.clip.clip(row[None])[0] for row in game.directions])  # type: ignore[union-attr]  # no median
    apart = clipped @ clipped.T / np.linalg.norm(clipped, axis=1) ** 2
    assert np.allclose(apart, np.eye(game.canaries), atol=1e-9)
    assert np.linalg.norm(clipped[0]) == pytest.approx(game.clip.clip_norm * game.reach, rel=1e-6)  # type: ignore[union-attr]  # as above
    assert game.reach > 0.98
    if isinstance(game.clip, PerLayerClip):
        assert isinstance(work.plan, Plan)
        first = clipped[:, : game.parts[0]]
        assert np.allclose(first @ first.T, np.eye(10) * game.clip.clip_norms[0] ** 2, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["data.public=false", "data.identity='ward'", "run.randomness=seeded", "run.seed=1"], "public"),
        (["privacy.place=local"], "noise for themselves"),
        (["privacy.clip={kind='median'}"], "median"),
    ],
)
def test_who_cannot_hide_is_refused(settings: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        audit_work(federation(*settings), effort=Effort(repeats=2, among=1))


def test_records_and_devices_have_no_clients_to_hide_among() -> None:
    with pytest.raises(ConfigError, match="whole clients alone"):
        audit(Path("examples/phishing/phishing.toml"), effort=Effort(among=1))
    with pytest.raises(ConfigError, match="whole clients alone"):
        audit(Path("examples/silos.toml"), overrides=["data.name=digits"], effort=Effort(among=1))
