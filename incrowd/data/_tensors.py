"""The one place where an array becomes a tensor over the same memory."""

import warnings
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


def shared_tensor(array: NDArray[Any]) -> "torch.Tensor":
    """A CPU tensor over the memory of the array. Writing to it writes to the array (for a read-only array: do not)."""
    import torch

    with warnings.catch_warnings():
        # Read-only arrays (memory maps) are welcome: nobody here writes to shared data.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(array)
