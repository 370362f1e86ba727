import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from incrowd.data import DownloadSource
from incrowd.data.download import fetch
from incrowd.errors import DataError

CONTENT = bytes(range(256)) * 500
CHECKSUM = hashlib.sha256(CONTENT).hexdigest()
NAME = "some.gz"


class Mirror(BaseHTTPRequestHandler):
    """A server that behaves as the first part of the path says."""

    def do_GET(self) -> None:
        _, behaviour, name = self.path.split("/")
        self.server.asked.append(self.path)  # type: ignore[attr-defined]  # set by the fixture
        if behaviour == "missing":
            self.send_error(404)
        elif behaviour == "silent":
            self.server.stop.wait()  # type: ignore[attr-defined]  # set by the fixture
        else:
            assert name
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write({"good": CONTENT, "short": CONTENT[:1000], "wrong": CONTENT[::-1]}[behaviour])

    def log_message(self, *args: object) -> None:
        """Nothing on the screen."""


@pytest.fixture
def mirror() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    server.asked, server.stop = [], threading.Event()  # type: ignore[attr-defined]  # for the tests and the handler
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.stop.set()  # type: ignore[attr-defined]  # set above
    server.shutdown()
    thread.join()
    server.server_close()


def source(mirror: ThreadingHTTPServer, *behaviours: str, timeout_s: float = 10) -> DownloadSource:
    where = f"http://127.0.0.1:{mirror.server_address[1]}"
    return DownloadSource(
        mirrors=tuple(f"{where}/{behaviour}/" for behaviour in behaviours),
        checksums={NAME: CHECKSUM},
        timeout_s=timeout_s,
    )


def test_a_file_is_fetched_into_a_new_folder(mirror: ThreadingHTTPServer, tmp_path: Path) -> None:
    path = fetch(NAME, folder=tmp_path / "new" / "folder", source=source(mirror, "good"))
    assert path == tmp_path / "new" / "folder" / NAME
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("missing", "404"),
        ("short", "stopped after 1000 of 128000 bytes"),
        ("wrong", f"wrong checksum [0-9a-f]{{64}}, expected {CHECKSUM}"),
        ("silent", "timed out"),
    ],
)
def test_a_bad_mirror_leaves_nothing_behind(
    mirror: ThreadingHTTPServer, tmp_path: Path, behaviour: str, message: str
) -> None:
    with pytest.raises(DataError, match=message) as error:
        fetch(NAME, folder=tmp_path, source=source(mirror, behaviour, timeout_s=0.2))
    assert f"/{behaviour}/{NAME}" in str(error.value)
    assert f"put the file into {tmp_path}" in str(error.value)
    assert list(tmp_path.iterdir()) == []
