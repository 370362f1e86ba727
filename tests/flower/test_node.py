import os
import threading
from pathlib import Path

import pytest

from incrowd import _files
from incrowd.errors import ConfigError
from incrowd.flower.node import Connection, attend
from incrowd.parties.keys import new_authority, new_party
from tests.flower.deployment import free_port


def connection(folder: Path) -> Connection:
    new_authority(folder / "server")
    new_party(folder / "amber", "amber")
    return Connection(f"127.0.0.1:{free_port()}", (folder / "server" / "ca.crt").read_text(), folder / "amber")


def test_a_second_process_for_the_same_party_is_refused(tmp_path: Path) -> None:
    found = connection(tmp_path)
    lock = _files.take(tmp_path / "amber" / "lock")
    assert lock is not None
    with pytest.raises(ConfigError, match="another process attends"):
        attend(found, bytes, threading.Event())
    os.close(lock)


@pytest.mark.parametrize("address", ["", "here", "here:", ":9092", "here:0", "here:70000", "here:x"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="give HOST:PORT"):
        Connection(address, "", tmp_path)
