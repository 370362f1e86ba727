"""The accountants are asked themselves here: no other process of the tests says what something costs."""

from collections.abc import Iterator

import pytest

from incrowd.privacy.account import accounting


@pytest.fixture(autouse=True, scope="module")
def _computed_here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounting, "_computed", {})
        yield
