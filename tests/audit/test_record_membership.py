"""What people try on the model of silos succeeds where nothing hides a record, and hardly where something does."""

from dataclasses import replace

import numpy as np
import pytest

from incrowd import Clients, SeededRandomness
from incrowd.audit.finding import Finding
from incrowd.audit.membership import membership
from incrowd.audit.record_membership import RecordTargets
from incrowd.errors import ConfigError
from incrowd.privacy.plan.sampling import fewest
from incrowd.runs.settings import parse
from incrowd.runs.silo_work import SiloWork, assemble_silos
from incrowd.runs.sources import Given
from tests.audit.broken import noise_is

pytestmark = pytest.mark.usefixtures("one_thread")

SILOS, RECORDS, NUMBERS = 2, 60, 150


def silos(*, records: int = RECORDS, **privacy: object) -> SiloWork:
    """Records of nothing but chance, which a model can only know by heart."""
    generator = np.random.default_rng(1)
    features = generator.normal(size=(SILOS * records, NUMBERS)).astype(np.float32)
    labels = generator.integers(0, 2, size=len(features))
    owner = np.repeat(np.arange(SILOS), records)
    data = Clients.from_arrays(features, labels, owner=owner, classes=2, public=True)
    config = parse(
        {
            "data": {"name": "given"},
            "local": {"batch_size": min(20.0, records), "epochs": 4.0, "learning_rate": 0.5},
            "privacy": {"unit": "record", "epsilon": 0.5, "delta": 1e-4, "rounds": 2, "records": records, **privacy},
            "run": {"randomness": "seeded", "seed": 1},
        }
    )
    assert config.of_records
    return assemble_silos(config, given=Given(data=data))


def record_membership(federation: SiloWork, *, models: int, seed: int = 1) -> list[Finding]:
    return membership(RecordTargets(federation=federation), models=models, seed=seed)


@pytest.mark.slow
def test_who_is_in_is_told_without_noise_and_hardly_with_it() -> None:
    found = record_membership(silos(), models=40, seed=1)
    private, plain = found[:3], found[3:]
    assert {one.unit for one in found} == {"record"}
    assert [one.claimed for one in private] == [pytest.approx(0.5, abs=1e-2)] * 3
    assert [one.claimed for one in plain] == [None] * 3
    assert [one.trials for one in found] == [40 * 12] * 6
    assert plain[0].auc is not None
    assert plain[0].auc > 0.8
    for one in private:
        assert one.auc == pytest.approx(0.5, abs=0.13)  # 480 coins err by .026
        assert one.holds


@pytest.mark.slow
def test_noise_that_is_missing_shows() -> None:
    with noise_is(0.01)():
        found = record_membership(silos(), models=24, seed=1)
    assert found[0].auc is not None
    assert found[0].auc > 0.8


def test_targets_are_records_of_their_silos_and_no_more_than_may_be_missing() -> None:
    federation = silos()
    targets = RecordTargets(federation=federation)
    assert targets.each == (RECORDS - fewest(RECORDS),) * SILOS == (6, 6)
    for silo, rows in enumerate(np.split(targets.rows, SILOS)):
        held = federation.records[silo]
        assert np.array_equal(federation.data.examples.labels[rows], held.labels[:6].numpy())
        assert np.array_equal(federation.data.examples.features[rows], held.features[:6].numpy())


def test_who_is_out_is_not_trained_on() -> None:
    targets = RecordTargets(federation=silos())
    inside = np.zeros(12, np.bool_)
    inside[[0, 7]] = True
    left = targets.without(inside, SeededRandomness(seed=1))
    for silo, (records, engine) in enumerate(zip(left.records, left.engines, strict=True)):
        held = targets.federation.records[silo].labels.numpy()
        assert np.array_equal(records.labels.numpy(), np.concatenate([held[[silo]], held[6:]]))
        assert engine.held == len(records) == 55
    assert left.plans == targets.federation.plans  # nothing that is public follows from who is out


def test_private_records_are_not_looked_at() -> None:
    federation = silos()
    secret = replace(federation, data=replace(federation.data, public=False))
    with pytest.raises(ConfigError, match="public"):
        record_membership(secret, models=2, seed=0)


def test_silos_of_a_few_records_have_no_targets() -> None:
    federation = silos(records=5)
    with pytest.raises(ConfigError, match="ten or more"):
        record_membership(federation, models=2, seed=0)


def test_numbers_for_labels_are_refused() -> None:
    federation = silos()
    examples = replace(federation.data.examples, classes=None, labels=np.zeros(SILOS * RECORDS, np.float32))
    with pytest.raises(ConfigError, match="classes"):
        record_membership(replace(federation, data=replace(federation.data, examples=examples)), models=2, seed=0)
