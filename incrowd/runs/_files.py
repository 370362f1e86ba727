"""Files that are there in full, or not at all."""

import os
from pathlib import Path

PART = ".part"
"""What the name of a file ends in that was not finished."""


def write(path: Path, content: bytes | str) -> None:
    """Write a file in one step.

    Guarantee: whenever this is cut off, `path` holds either what it held before or all of the new content; when it
    returns, that is on disk.
    """
    part = path.with_name(path.name + PART)
    with part.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
