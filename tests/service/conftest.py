"""A Redis for the tests of a module, emptied for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from incrowd.service import remote
from tests.service.redis_process import RedisProcess


@pytest.fixture(scope="module")
def redis_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path_factory.mktemp("redis"))
    yield process
    process.kill()


@pytest.fixture
def own_redis(redis_of_module: RedisProcess) -> RedisProcess:
    redis_of_module.empty()
    return redis_of_module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "pool"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers leave at once: the examples of tests are no secret."""
    monkeypatch.setattr(remote, "PACE_S", 0.0)
