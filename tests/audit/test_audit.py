"""An audit of the demonstration, of other settings and of runs: what it finds, and what it leaves alone."""

import json
from pathlib import Path

import pytest

from incrowd.audit.audit import Effort, audit, audit_plan, audit_work
from incrowd.audit.pipeline import pipeline_checks
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Everyone, constant
from incrowd.runs.sources import NOTHING
from incrowd.runs.work import ClientWork, assemble
from tests.audit.broken import engine_adds_twice, longer_later, query_in_company, training_in_company
from tests.runs.small import load

SMALL = ["data.clients=20", "privacy.rounds=3", "privacy.epsilon=4"]
EFFORT = Effort(repeats=4)


@pytest.fixture
def work() -> ClientWork:
    return assemble(load(overrides=SMALL), given=NOTHING)


@pytest.mark.slow
def test_one_strong_canary_finds_a_third_of_epsilon_two() -> None:
    """What was asked of an audit. Measured: three quarters of it."""
    budget = Budget(epsilon=2.0, delta=1e-5)
    plan = PlanConfig(members=100, schedule=constant(rounds=1, cohort=100), sampling=Everyone).calibrate(budget)
    found = audit_plan(plan, budget, effort=Effort(canaries=20_000))
    assert found.best is not None
    assert 2.0 / 3 < found.best.lower_bound <= 2.0
    assert found.holds


def test_a_federation_as_it_is_configured_passes(work: ClientWork) -> None:
    found = audit_work(work, effort=EFFORT)
    assert found.violations == ()
    assert found.settings["model_size"] == work.model.size
    assert any("federation" in check.name for check in found.checks)
    said = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert said["epsilon_claimed"] == pytest.approx(4.0)
    assert 0 <= said["epsilon_lower_bound"] <= 4
    assert said["confidence"] == 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    ("breakage", "witness"),
    [(training_in_company, "what a client learns among others"), (engine_adds_twice, "federation")],
)
def test_a_broken_engine_is_caught(work: ClientWork, breakage: object, witness: str) -> None:
    assert callable(breakage)
    with breakage():
        found = audit_work(work, effort=EFFORT)
    assert any(witness in violation for violation in found.violations), found.violations


def test_a_clip_that_is_wrong_in_late_rounds_alone_is_caught() -> None:
    work = assemble(load(overrides=[*SMALL, "privacy.rounds=6"]), given=NOTHING)
    with longer_later():
        found = pipeline_checks(work, seed=0, rounds=2)
    assert [check.name for check in found if not check.holds] == ["sum of the last round"]
    assert all(check.holds for check in pipeline_checks(work, seed=0, rounds=2))  # the control


@pytest.mark.slow
def test_a_broken_query_is_caught_before_anybody_is_trained() -> None:
    work = assemble(
        load(overrides=[*SMALL, "local={label_shares=0.1, label_distribution=0.2}", "model.bias=true"]), given=NOTHING
    )
    assert audit_work(work, effort=EFFORT).violations == ()
    with query_in_company():
        found = audit_work(work, effort=EFFORT)
    assert any("what a client learns among others" in violation for violation in found.violations), found.violations


@pytest.mark.slow
def test_nothing_is_trained_on_private_data(work: ClientWork, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be shown of them nobody pays for."""
    from dataclasses import replace

    from incrowd.learning import CohortEngine

    def never(*_: object, **__: object) -> None:
        raise AssertionError("trained")

    for name in ("train", "train_and_sum"):
        monkeypatch.setattr(CohortEngine, name, never)
    secret = replace(work, data=replace(work.data, public=False))
    found = audit_work(secret, effort=EFFORT)
    assert any("private" in note for note in found.notes)
    with pytest.raises(AssertionError, match="trained"):  # the control
        audit_work(work, effort=EFFORT)


def test_a_run_is_audited_as_it_was_made_and_other_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="as it was made"):
        audit(tmp_path, overrides=["privacy.epsilon=1"])
    with pytest.raises(ConfigError, match="there is no run"):
        audit(tmp_path)


@pytest.mark.slow
def test_silos_are_audited_record_by_record(tmp_path: Path) -> None:
    path = tmp_path / "silos.toml"
    path.write_text(
        '[data]\nname = "digits"\nclients = 2\n[local]\nbatch_size = 64\n'
        '[privacy]\nunit = "record"\nepsilon = 20.0\ndelta = 1e-5\nrounds = 1\nnoise_multiplier = 2.0\n'
    )
    found = audit(path, effort=Effort(canaries=600, quick=True))
    assert found.violations == ()
    assert {each.unit for each in found.findings} == {"record"}


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["laplace", "direction"])
def test_a_specification_is_audited_contribution_by_contribution(tmp_path: Path, noise: str) -> None:
    stated = Path("examples/phishing/phishing.toml").read_text(encoding="utf-8")
    (tmp_path / "asked.toml").write_text(f'noise = "{noise}"\n{stated}', encoding="utf-8")
    found = audit(tmp_path / "asked.toml", effort=Effort(canaries=600))
    assert found.violations == ()
    assert {each.unit for each in found.findings} == {"contribution"}


@pytest.mark.parametrize("field", ["canaries", "repeats"])
def test_efforts_of_nothing_are_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Effort(**{field: 0})  # type: ignore[arg-type]  # by name
