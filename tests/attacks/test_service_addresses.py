"""Attack: somebody asks a service more often than one may, under other names, or so that others may not.

What a client writes about its own address counts for nothing; who floods the table of addresses gains nothing by it.
"""

from pathlib import Path

import numpy as np
import pytest

from incrowd.service import rates
from incrowd.service.application import Surface
from incrowd.service.embedded import EmbeddedStore
from incrowd.service.rates import AddressRates, Caller, TrustedProxies
from tests.drawdiscard.mail import asked
from tests.service.running import Running, run, service


def drawn_with(surface: Surface, count: int) -> int:
    """How many of so many draws got through, each of which claims another address."""
    through = []

    async def main() -> None:
        async with service(EmbeddedStore(asked()), surface=surface) as running:
            for number in range(count):
                got = await running.ask("/v1/draw", headers={"x-forwarded-for": f"203.0.113.{number}"})
                through.append(got.status == 200)

    run(main)
    return sum(through)


def test_another_address_in_a_header_buys_nothing_and_where_the_proxy_is_trusted_it_counts() -> None:
    assert drawn_with(Surface(rate=0.01, burst=3), 10) == 3
    trusted = TrustedProxies(["127.0.0.1"])
    assert drawn_with(Surface(rate=0.01, burst=3, proxies=trusted), 10) == 10


def test_what_a_client_prepends_to_a_proxys_header_is_not_believed() -> None:
    proxies = TrustedProxies(["10.0.0.0/8", "127.0.0.1"])
    for forged in (
        b"203.0.113.1, 198.51.100.7",
        b"x, , 198.51.100.7",
        b"198.51.100.7, 10.1.2.3",
        b"1.1.1.1,198.51.100.7,10.9.9.9",
    ):
        assert proxies.client("127.0.0.1", forged) == "198.51.100.7"
    assert proxies.client("198.51.100.9", b"203.0.113.1") == "198.51.100.9", "nobody has to be believed"
    assert proxies.client("::ffff:10.0.0.1", b"198.51.100.7") == "198.51.100.7"


def test_a_house_full_of_addresses_of_ipv6_is_one() -> None:
    limits = AddressRates(0.01, 3)
    through = sum(limits.wait(Caller(f"2001:db8:1:2::{number:x}")) == 0 for number in range(50))
    assert through == 3
    assert limits.wait(Caller("2001:db8:1:3::1")) == 0


@pytest.mark.slow
def test_a_flood_of_addresses_does_not_give_a_busy_one_its_rate_back() -> None:
    limits = AddressRates(0.01, 3)
    busy = "198.51.100.7"
    while limits.wait(Caller(busy)) == 0:
        pass
    for number in range(200_000):
        limits.wait(Caller(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"))
    assert limits.wait(Caller(busy)) > 0


def blocked(rate_places: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """The share of honest addresses that 20,000 busy ones shut out."""
    with monkeypatch.context() as patched:
        patched.setattr(rates, "BUCKETS", rate_places)
        limits = AddressRates(0.01, 2)
        for number in range(20_000):
            for _ in range(3):
                limits.wait(Caller(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"))
        honest = [f"192.0.{number >> 8}.{number & 255}" for number in range(2_000)]
        return float(np.mean([limits.wait(Caller(address)) > 0 for address in honest]))


def test_a_flood_shuts_few_others_out_and_in_a_smaller_table_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    assert blocked(rates.BUCKETS, monkeypatch) < 0.1
    assert blocked(2**12, monkeypatch) > 0.9


def test_the_table_is_of_one_size_and_its_key_lives_for_an_hour() -> None:
    now = [0.0]
    limits = AddressRates(0.0001, 1, now=lambda: now[0])
    key = limits._key
    assert limits.wait(Caller("198.51.100.7")) == 0
    assert limits.wait(Caller("198.51.100.7")) > 0
    now[0] = 3599.0
    assert limits._key == key
    assert limits.wait(Caller("198.51.100.7")) > 0
    now[0] = 3600.0
    assert limits.wait(Caller("198.51.100.7")) == 0
    assert limits._key != key
    assert len(limits._full) == rates.BUCKETS


def test_no_address_is_in_the_memory_of_what_limits_it() -> None:
    limits = AddressRates(1, 5)
    limits.wait(Caller("198.51.100.7"))
    held = repr(vars(limits)) + limits._full.tobytes().hex()
    assert "198.51.100.7" not in held
    assert bytes([198, 51, 100, 7]).hex() not in held


@pytest.mark.parametrize("status", [200, 404, 405, 409, 422, 429])
def test_nothing_is_written_about_a_request_whatever_becomes_of_it(
    status: int, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def requests(running: Running) -> int:
        drawn = await running.ask("/v1/draw")
        if status in (404, 405):
            return (
                await running.ask(
                    "/nothing" if status == 404 else "/v1/draw", method="POST" if status == 405 else "GET"
                )
            ).status
        if status == 409:
            return (await running.answer(drawn.body, drawn, incrowd_fingerprint="0" * 64)).status
        if status == 422:
            return (await running.answer(np.full(4, 1e6, "<f4").tobytes(), drawn)).status
        if status == 429:
            return [(await running.ask("/v1/draw")).status for _ in range(20)][-1]
        return drawn.status

    async def main() -> None:
        surface = Surface(rate=0.01, burst=10)
        async with service(EmbeddedStore(asked(), folder=tmp_path), surface=surface) as running:
            assert await requests(running) == status

    with caplog.at_level(0):
        run(main)
    out, err = capfd.readouterr()
    written = out + err + caplog.text
    assert "127.0.0.1" not in written.replace("asyncio", "")
    for path in tmp_path.iterdir():
        assert b"127.0.0.1" not in path.read_bytes()
