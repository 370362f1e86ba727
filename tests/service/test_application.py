"""Draw and answer over HTTP, and every reason why not; what else there is to read."""

import json
from typing import Any

import numpy as np
import pytest

from incrowd.drawdiscard.desk import TICKET_BYTES
from tests.drawdiscard.mail import asked
from tests.service.running import Running, request, run, service

UNLIKELY = 2e-3
"""So few honest answers are turned away in tests of something else."""


def with_service(work: Any, **changes: object) -> None:
    async def main() -> None:
        from incrowd.service.store import EmbeddedStore

        store = EmbeddedStore(asked(**changes), turned_away=UNLIKELY)
        async with service(store) as running:
            await work(running)

    run(main)


def test_an_answer_brings_the_next_draw() -> None:
    async def work(running: Running) -> None:
        drawn = await running.ask("/v1/draw")
        for number in range(10):
            drawn = await running.answer(running.honest(drawn, seed=number), drawn)
            assert (drawn.status, drawn.headers["incrowd-outcome"]) == (200, "accepted")
            assert drawn.headers["incrowd-fingerprint"] == asked().fingerprint
            assert float(drawn.headers["incrowd-gamma"]) == asked().gamma
            assert np.isfinite(drawn.row).all()
            assert drawn.row.size == asked().size
        status = json.loads((await running.ask("/status.json")).body)
        assert status["accepted"] == 10

    with_service(work)


NOT_FINITE = np.full(4, np.nan, "<f4").tobytes()


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"incrowd_fingerprint": "0" * 64}, 409, "other_specification"),
        ({"incrowd_ticket": "00" * TICKET_BYTES}, 409, "other_specification"),
        ({"incrowd_ticket": "zz"}, 403, "forged"),
        ({"incrowd_ticket": "é"}, 403, "forged"),
        ({"incrowd_ticket": "00" * 4000}, 403, "forged"),
        ({"body": NOT_FINITE}, 400, "not_weights"),
        ({"body": np.full(4, np.inf, "<f4").tobytes()}, 400, "not_weights"),
        ({"body": np.full(4, 3e38, "<f4").tobytes()}, 400, "not_weights"),
        ({"body": b"short"}, 400, "not_weights"),
        ({"body": b""}, 400, "not_weights"),
        ({"body": bytes(17)}, 413, "too_large"),
        ({"body": bytes(100_000)}, 413, "too_large"),
        ({"body": np.full(4, 1e6, "<f4").tobytes()}, 422, "unlike"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_each_problem_has_its_status_and_a_remedy(change: dict[str, Any], status: int, reason: str) -> None:
    async def work(running: Running) -> None:
        drawn = await running.ask("/v1/draw")
        changed = dict(change)
        body = changed.pop("body", None)
        got = await running.answer(running.honest(drawn, seed=1) if body is None else body, drawn, **changed)
        assert (got.status, got.reason) == (status, reason)
        assert json.loads(got.body)["remedy"]
        figures = await running.store.figures()
        assert figures.accepted == 0

    with_service(work)


def test_a_body_without_a_length_is_not_read() -> None:
    async def work(running: Running) -> None:
        got = await running.raw(request("/v1/answer", method="POST", headers={"transfer-encoding": "chunked"}))
        assert (got.status, got.reason) == (411, "length_required")

    with_service(work)


def test_a_body_that_is_too_large_is_refused_before_it_comes() -> None:
    async def work(running: Running) -> None:
        sent = request("/v1/answer", method="POST", headers={"content-length": str(10**12), "expect": "100-continue"})
        got = await running.raw(sent)
        assert (got.status, got.reason) == (413, "too_large")
        assert got.headers["connection"] == "close"

    with_service(work)


def test_other_methods_and_names_are_told_apart() -> None:
    async def work(running: Running) -> None:
        for method, path, status, allowed in (
            ("POST", "/v1/draw", 405, {"GET", "HEAD", "OPTIONS"}),
            ("GET", "/v1/answer", 405, {"POST", "OPTIONS"}),
            ("DELETE", "/v1/specification", 405, {"GET", "HEAD", "OPTIONS"}),
            ("PUT", "/health", 405, {"GET", "HEAD"}),
            ("GET", "/nothing", 404, {""}),
            ("GET", "/v1/draw/", 404, {""}),
        ):
            got = await running.ask(path, method=method)
            assert (method, path, got.status) == (method, path, status)
            assert set(got.headers.get("allow", "").split(", ")) == allowed
            assert json.loads(got.body)["remedy"]

    with_service(work)


def test_the_average_is_that_of_the_instances() -> None:
    async def work(running: Running) -> None:
        average = (await running.store.figures()).mean
        assert json.loads((await running.ask("/v1/average")).body)["weights"] == average.tolist()

    with_service(work)


def test_pages_of_other_origins_may_be_devices_and_nothing_else() -> None:
    async def work(running: Running) -> None:
        for path in ("/v1/specification", "/v1/draw", "/v1/average", "/v1/answer"):
            asked_first = await running.ask(path, method="OPTIONS", headers={"origin": "https://elsewhere.example"})
            assert asked_first.status == 204
            assert asked_first.headers["access-control-allow-origin"] == "*"
            assert "incrowd-ticket" in asked_first.headers["access-control-allow-headers"]
            assert "access-control-allow-credentials" not in asked_first.headers
        for path in ("/v1/draw", "/v1/specification"):
            got = await running.ask(path, headers={"origin": "https://elsewhere.example"})
            assert got.headers["access-control-allow-origin"] == "*"
        for path in ("/status.json", "/metrics", "/health"):
            assert "access-control-allow-origin" not in (await running.ask(path)).headers

    with_service(work)


def test_every_reply_says_how_browsers_are_to_treat_it() -> None:
    async def work(running: Running) -> None:
        for path in ("/v1/draw", "/v1/specification", "/health", "/nothing", "/status.json", "/v1/average"):
            headers = (await running.ask(path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert "default-src 'none'" in headers["content-security-policy"]
            assert headers["cache-control"] == "no-store"
            assert "server" not in headers
            assert "date" not in headers

    with_service(work)


def test_figures_for_a_monitor_count_what_happened() -> None:
    async def work(running: Running) -> None:
        drawn = await running.ask("/v1/draw")
        await running.answer(running.honest(drawn, seed=1), drawn)
        await running.answer(np.full(4, 1e6, "<f4").tobytes(), drawn)
        text = (await running.ask("/metrics")).body.decode()
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert samples["incrowd_accepted_total"] == "1"
        assert samples['incrowd_turned_away_total{reason="unlike"}'] == "1"
        assert samples["incrowd_store_up"] == "1"
        assert int(samples["process_resident_memory_bytes"]) > 2**20

    with_service(work)
