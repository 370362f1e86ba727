"""One address that sends as many contributions as it can: with admission, an account moves the model once a day."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from incrowd.service.admission import KEY_BYTES, Admission, key_in
from incrowd.service.redis_store import RedisStore
from incrowd.service.store import EmbeddedStore, PoolStore
from tests.command import command
from tests.drawdiscard.mail import asked
from tests.service.redis_process import RedisProcess
from tests.service.running import run, service

KEY, OTHER = bytes(KEY_BYTES), bytes([1] * KEY_BYTES)
OFTEN = 30
Make = Callable[[], PoolStore]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path_factory.mktemp("redis"))
    yield process
    process.kill()


@pytest.fixture(params=["embedded", "redis"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "embedded":
        return lambda: EmbeddedStore(asked(), folder=tmp_path / "pool", turned_away=2e-3)
    process: RedisProcess = request.getfixturevalue("redis")
    process.empty()
    return lambda: RedisStore(asked(), process.url, turned_away=2e-3)


def accepted(store: PoolStore, admission: Admission | None, *tokens: str) -> int:
    """How many of the answers enter that come one after the other, each with a token."""
    counts = []

    async def main() -> None:
        async with service(store, admission=admission) as running:
            for number, token in enumerate(tokens):
                drawn = await running.ask("/v1/draw")
                got = await running.answer(running.honest(drawn, seed=number), drawn, incrowd_admission=token)
                counts.append(got.headers.get("incrowd-outcome") == "accepted")
                assert got.status == 200 or got.reason in ("not_admitted", "day_over", "unlike")

    run(main)
    return sum(counts)


def test_a_flood_of_one_account_counts_once_a_day(make: Make) -> None:
    admission = Admission(key=KEY)
    assert accepted(make(), admission, *[admission.token("ann")] * OFTEN) == 1
    assert accepted(make(), admission, admission.token("ann"), admission.token("bob")) == 1  # after a restart, too
    tomorrow = Admission(key=KEY, today=lambda: "2999-01-01")
    assert accepted(make(), tomorrow, *[tomorrow.token("ann")] * 3) == 1
    assert accepted(make(), admission, admission.token("cy")) == 0  # a clock put back brings no day back


def test_control_an_open_door_takes_the_whole_flood(make: Make) -> None:
    assert accepted(make(), None, *[""] * OFTEN) >= OFTEN - 2


def test_without_a_token_of_this_operator_nothing_enters(make: Make) -> None:
    admission = Admission(key=KEY)
    good = admission.token("ann")
    wrong = ["", "ann", "ann.", f"bob.{good.partition('.')[2]}", good[:-1], good.upper(), f"{good}0", "é" * 9]
    forged = [Admission(key=OTHER).token("ann"), "a" * 300, f"{good},{good}"]
    assert accepted(make(), admission, *[token.encode().decode("latin-1") for token in (*wrong, *forged)]) == 0
    assert accepted(make(), admission, good) == 1  # the control


def test_more_a_day_may_be_allowed_by_name(make: Make) -> None:
    admission = Admission(key=KEY, daily=3)
    assert accepted(make(), admission, *[admission.token("ann")] * OFTEN) == 3


def test_tokens_are_issued_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "admission.key"
    found = command(monkeypatch, capsys)("ddml", "token", "--key", str(path), "ann", "bob", "--json").object()
    admission = Admission(key=key_in(path))
    assert {account: admission.token(account) for account in ("ann", "bob")} == found["tokens"]
    assert admission.visit(found["tokens"]["ann"]) is not None
    (tmp_path / "empty").write_text("\n")
    for wrong in ("none", "empty"):
        asked = ("--server", "http://127.0.0.1:9", "--database", "d.sqlite", "--token-file", str(tmp_path / wrong))
        refused = command(monkeypatch, capsys)("contribute", *asked)
        assert (refused.status, "name the file that holds the token" in refused.err) == (2, True)
