"""Attack: somebody reads the service's logs or its folder, and learns who asked for what.

The service never looks at an address: limits by address are nginx's (tests/attacks/test_nginx_before_a_service.py).
"""

from pathlib import Path

import numpy as np
import pytest

from incrowd.service.store import EmbeddedStore
from tests.drawdiscard.mail import asked
from tests.service.running import Running, run, service


@pytest.mark.parametrize("status", [200, 404, 405, 409, 422])
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
        return drawn.status

    async def main() -> None:
        async with service(EmbeddedStore(asked(), folder=tmp_path)) as running:
            assert await requests(running) == status

    with caplog.at_level(0):
        run(main)
    out, err = capfd.readouterr()
    written = out + err + caplog.text
    assert "127.0.0.1" not in written.replace("asyncio", "")
    for path in tmp_path.iterdir():
        assert b"127.0.0.1" not in path.read_bytes()
