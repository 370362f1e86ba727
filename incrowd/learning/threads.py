"""The number of torch's threads: one where incrowd shares out the work."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Let torch compute with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread() -> AbstractContextManager[None]:
    """Let torch compute with one thread."""
    return with_threads(1)
