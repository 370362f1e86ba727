from typing import Any

import pytest
import torch

from incrowd.learning.execution import in_one_order


def _told() -> tuple[bool, bool, bool]:
    deterministic: Any = torch.utils.deterministic
    filled = bool(deterministic.fill_uninitialized_memory)
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(), filled


@pytest.mark.parametrize("kindly", [False, True])
def test_an_accelerator_adds_up_in_one_order_meanwhile(monkeypatch: pytest.MonkeyPatch, *, kindly: bool) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # what the user says stays
    torch.use_deterministic_algorithms(kindly, warn_only=kindly)
    before = _told()
    try:
        with in_one_order(torch.device("meta")):
            assert _told() == (True, False, False)
        assert _told() == before
        with in_one_order(torch.device("cpu")):
            assert _told() == before
    finally:
        torch.use_deterministic_algorithms(mode=False)
