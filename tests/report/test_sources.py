"""What is watched is seen as it grows, comes and goes, and is not touched."""

import json
import shutil
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from incrowd.errors import ConfigError, DataError
from incrowd.report.watching import Sources
from tests.report.conftest import Made
from tests.report.test_shown import state_of
from tests.report.test_watch import another_round, begun


def test_a_run_is_seen_as_it_grows_and_is_not_touched(made: Made, folder: Path) -> None:
    run = begun(made("simulated"), folder / "run")
    sources = Sources([str(run)])
    before = state_of(run)
    assert [len(one.rounds) for one in sources.shown] == [2]
    assert not sources.look()
    assert state_of(run) == before
    another_round(made("simulated"), run)
    assert sources.look()
    assert [len(one.rounds) for one in sources.shown] == [3]
    assert not sources.shown[0].over
    shutil.copytree(made("simulated"), run, dirs_exist_ok=True)
    assert sources.look()
    assert sources.shown[0].over


def test_runs_come_and_go_in_a_folder_of_them(made: Made, folder: Path) -> None:
    first = begun(made("simulated"), folder / "first")
    (folder / "nothing").mkdir()
    sources = Sources([str(folder)])
    assert [one.name for one in sources.shown] == ["first"]
    begun(made("simulated"), folder / "second")
    assert sources.look()
    assert [one.name for one in sources.shown] == ["first", "second"]
    shutil.rmtree(first)
    assert sources.look()
    assert [one.name for one in sources.shown] == ["second"]


def test_what_cannot_be_read_any_more_stays_as_it_was(made: Made, folder: Path) -> None:
    run = begun(made("simulated"), folder / "run")
    sources = Sources([str(run)])
    kept = (run / "ledger.json").read_bytes()
    (run / "ledger.json").write_text("no JSON")
    assert sources.look()
    assert "is not JSON" in sources.troubles[0]
    assert [len(one.rounds) for one in sources.shown] == [2]
    (run / "ledger.json").write_bytes(kept)
    assert sources.look()
    assert sources.troubles == ()


@pytest.mark.parametrize("places", [["nowhere"], ["."]])
def test_what_is_not_there_is_refused_at_once(places: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match="watch"):
        Sources(places)


class Server(BaseHTTPRequestHandler):
    """Gives a status, or sends elsewhere."""

    answers: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        content = self.answers.get(self.path)
        self.send_response(200 if content is not None else 302)
        if content is None:
            self.send_header("location", "/elsewhere")
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_a_server_is_asked_for_its_status_and_followed_nowhere_else() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        status = {"name": "mail", "epsilon": 2.0, "accepted": 3, "secret": "a canary"}
        Server.answers = {"/status.json": status, "/elsewhere": status}
        sources = Sources([address])
        assert sources.shown[0].pool == {"name": "mail", "epsilon": 2.0, "accepted": 3}
        Server.answers = {"/status.json": {**status, "accepted": 4}}
        assert sources.look()
        Server.answers = {"/elsewhere": status}
        assert sources.look()
        assert "gives no status" in sources.troubles[0]
        with pytest.raises(DataError, match="gives no status"):
            Sources([address])
    finally:
        server.shutdown()
        server.server_close()
