"""Records go through frozen layers once, alone, and nothing else changes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from incrowd._random import SeededRandomness, Stream
from incrowd.learning import CROSS_ENTROPY, Model
from incrowd.learning.dpsgd import engine as engines
from incrowd.learning.dpsgd.engine import BatchedRecords, FrozenCache
from incrowd.learning.dpsgd.records import Records
from incrowd.privacy.mechanism.grid import RecordTraining
from incrowd.settings import Descent
from tests.learning.backends.test_frozen import CLASSES, TOKENS, WORDS, adapted, frozen, headed, thawed
from tests.learning.dpsgd.cases import start, tilted
from tests.reference import one_record

COUNT = 30
DESCENT = Descent(learning_rate=0.3, momentum=0.5)


def records(*, tokens: bool = True, seed: int = 1) -> Records:
    generator = np.random.default_rng(seed)
    drawn = (
        generator.integers(0, WORDS, (COUNT, TOKENS)) if tokens else generator.random((COUNT, TOKENS), dtype=np.float32)
    )
    labels = torch.from_numpy(generator.integers(0, CLASSES, COUNT))
    return Records(features=torch.from_numpy(drawn), labels=labels)


def often(steps: int = 12) -> RecordTraining:
    return RecordTraining(
        steps=steps, sampling_prob=0.5, expected_batch=15.0, clip_norm=0.5, noise_multiplier=1.0, physical_batch=7
    )


def batches() -> Stream:
    return SeededRandomness(3).stream("batches")


def trained(engine: BatchedRecords, settings: RecordTraining) -> Tensor:
    return engine.train(start(engine.model), settings, noise=tilted, batches=batches()).weights


def without_dropout(module: nn.Module) -> nn.Module:
    """The twin does not know that dropout in a frozen layer is at rest."""
    for layer in module.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
        if isinstance(layer, nn.MultiheadAttention):
            layer.dropout = 0.0
    return module


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The records that go through frozen layers."""
    rows: list[int] = []
    through = FrozenCache._through

    def counted(self: FrozenCache, row: int) -> Tensor:
        rows.append(row)
        return through(self, row)

    monkeypatch.setattr(FrozenCache, "_through", counted)
    return rows


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's, of attention beside adapters
@pytest.mark.parametrize(("build", "tokens"), [(headed, True), (adapted, True), (thawed, False)])
def test_the_steps_are_those_of_the_slow_twin_and_records_go_through_once(
    build: Callable[[], nn.Module], tokens: bool, passed: list[int]
) -> None:
    model, data = Model(without_dropout(build())), records(tokens=tokens)
    found = trained(BatchedRecords(model, data, DESCENT), often())
    assert sorted(passed) == list(range(COUNT))
    weights = start(model)
    expected = one_record.trained(
        model, weights, data, often(), descent=DESCENT, loss=CROSS_ENTROPY, noise=tilted, batches=batches()
    )
    assert float((found - expected).norm() / (expected - weights).norm()) < 1e-5


def test_what_is_kept_has_the_same_bits_whoever_is_beside_it() -> None:
    """Sums of 300 products are rounded in another order where rows are together, on many processors: not so here."""
    torch.manual_seed(0)
    features, others, labels = torch.randn(COUNT, 300), torch.randn(7, 300), torch.zeros(COUNT, dtype=torch.int64)
    model = Model(nn.Sequential(*frozen(nn.Linear(300, 65)), nn.Tanh(), nn.Linear(65, CLASSES)))
    one = FrozenCache.of(model, Records(features=features, labels=labels))
    beside = FrozenCache.of(model, Records(features=torch.cat([others, features[7:]]), labels=labels))
    assert one is not None
    assert beside is not None
    alone = one.take(torch.tensor([7]))[0]
    assert torch.equal(beside.take(torch.tensor([29, 3, 7, 0]))[0][2:3], alone)
    assert torch.equal(one.take(torch.arange(COUNT))[0][7:8], alone)


def test_what_memory_does_not_hold_is_made_again_with_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, passed: list[int]
) -> None:
    data, settings = records(), replace(often(), expected_batch=5.0)  # of 10 records, by what is public
    kept = trained(BatchedRecords(Model(headed()), data, DESCENT), settings)
    passed.clear()
    monkeypatch.setattr(engines, "_MEMORY", 4 * 8 * TOKENS * 10)
    again = trained(BatchedRecords(Model(headed()), data, DESCENT), settings)
    assert torch.equal(again, kept)
    assert sum(passed.count(row) == 1 for row in range(COUNT)) >= 10
    assert len(passed) > 3 * COUNT


@pytest.mark.parametrize(("room", "kept"), [(COUNT, True), (COUNT - 1, False)])
def test_whether_records_are_kept_follows_from_public_settings(
    room: int, kept: bool, monkeypatch: pytest.MonkeyPatch, passed: list[int]
) -> None:
    monkeypatch.setattr(engines, "_MEMORY", 4 * 9 * room)
    whole = records(tokens=False)
    few = Records(features=torch.as_tensor(whole.features)[:3], labels=whole.labels[:3])
    trained(BatchedRecords(Model(thawed()), few, DESCENT), often())
    assert bool(passed) == kept


def test_a_rehearsal_leaves_nothing_behind(passed: list[int]) -> None:
    engine = BatchedRecords(Model(headed()), records(), DESCENT)
    trained(engine.rehearsal(COUNT), often())
    passed.clear()
    trained(engine, often())
    assert sorted(passed) == list(range(COUNT))


ALONG = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=False)
HEAD = nn.Linear(TOKENS, CLASSES)
SEVERAL = Records(features={"one": torch.zeros(2, 3), "two": torch.zeros(2, 3)}, labels=torch.zeros(2))
LEFT: dict[str, tuple[nn.Module, Records]] = {
    "nothing is frozen": (nn.Sequential(HEAD), records(tokens=False)),
    "nothing that could be": (nn.Sequential(nn.Flatten(), HEAD), records(tokens=False)),
    "looks along the batch": (
        nn.Sequential(*frozen(nn.Embedding(WORDS, 8), ALONG), nn.Flatten(), nn.Linear(8 * TOKENS, CLASSES)),
        records(),
    ),
    "cannot take made-up records": (
        nn.Sequential(*frozen(nn.Linear(TOKENS + 1, 9)), nn.Linear(9, CLASSES)),
        records(tokens=False),
    ),
    "several inputs": (headed(), SEVERAL),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_models_have_no_cache(name: str) -> None:
    module, data = LEFT[name]
    assert FrozenCache.of(Model(module), data) is None
