import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from incrowd.errors import ConfigError
from incrowd.flower.node import join
from incrowd.parties.folder import PartyFolder


@pytest.mark.parametrize("address", ["", "here", "here:", ":9092", "here:0", "here:70000", "here:x"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, address: str) -> None:
    invitation = SimpleNamespace(address=address, authority="")
    member = cast(PartyFolder, SimpleNamespace(invitation=invitation, folder=tmp_path))
    with pytest.raises(ConfigError, match="give HOST:PORT"):
        join(member, threading.Event())
