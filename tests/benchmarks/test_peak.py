import sys

import pytest
import torch

from contest.peak import describe, matrix_peak, one_processor, processors
from incrowd.learning.threads import one_thread


def test_the_peak_is_a_rate_and_leaves_threads_as_they_are() -> None:
    before = torch.get_num_threads()
    assert 1e8 < matrix_peak((64, 128), times=2) < 1e14
    assert torch.get_num_threads() == before


def test_one_thread_holds_for_a_while() -> None:
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say or let processes choose")
def test_one_processor_holds_for_a_while() -> None:
    before = processors()
    with one_processor():
        assert processors() == before[-1:]
    assert processors() == before


def test_the_machine_is_described() -> None:
    found = describe()
    assert found["processors"] == len(processors())
    assert found["torch"] == torch.__version__
    assert found["processor"]
