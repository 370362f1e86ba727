"""Fetch a public file from one of several mirrors, checked and whole, or not at all."""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from incrowd import _validate
from incrowd.errors import ConfigError, DataError

_LARGEST = 1 << 28


@dataclass(frozen=True, kw_only=True)
class DownloadSource:
    """Where files come from and what they must be.

    ``mirrors`` are addresses of folders, tried in order; ``checksums`` gives the SHA-256 of each file by name;
    ``timeout_s`` bounds each wait for the network.
    """

    mirrors: tuple[str, ...]
    checksums: Mapping[str, str]
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        _validate.positive(timeout_s=self.timeout_s)
        if not self.mirrors:
            raise ConfigError(field="mirrors", value=self.mirrors, remedy="give at least one address")
        for mirror in self.mirrors:
            if not mirror.startswith(("https://", "http://")):
                raise ConfigError(
                    field="mirrors", value=mirror, remedy="give addresses that start with https:// or http://"
                )


def fetch(name: str, *, folder: Path, source: DownloadSource) -> Path:
    """Put one file of the source into the folder.

    Guarantee: the file appears with the stated checksum, in one step, or not at all; a file that is there already is
    kept.

    Edge cases: a mirror that cannot be reached, sends an error, stops early or sends other bytes is passed over; if
    none is left, a `DataError` says what each of them did.
    """
    path = folder / name
    if path.exists():
        return path
    failures = []
    for mirror in source.mirrors:
        url = mirror.rstrip("/") + "/" + name
        try:
            payload = _transfer(url, source.timeout_s)
        except (OSError, HTTPException, ValueError) as error:
            failures.append(f"{url}: {error}")
            continue
        checksum = hashlib.sha256(payload).hexdigest()
        if checksum == source.checksums[name]:
            _write(path, payload)
            return path
        failures.append(f"{url}: wrong checksum {checksum}, expected {source.checksums[name]}")
    raise DataError(
        "\n  ".join([f"{name} could not be fetched:", *failures])
        + f"\ncheck the network, name another mirror, or put the file into {folder}"
    )


def _transfer(url: str, timeout_s: float) -> bytes:
    from urllib.request import urlopen  # here, because it is slow to import and rarely needed

    with urlopen(url, timeout=timeout_s) as response:  # noqa: S310  # a DownloadSource has http and https mirrors only
        payload: bytes = response.read(_LARGEST)
        announced = response.headers["Content-Length"]
    if announced is not None and int(announced) != len(payload):
        raise OSError(f"stopped after {len(payload)} of {announced} bytes")
    return payload


def _write(path: Path, payload: bytes) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as stream:
            stream.write(payload)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):  # there may be nothing to remove, and no folder to remove it from
            partial.unlink()
        raise DataError(
            f"{path}: cannot be written ({error.strerror}); check the folder, its permissions and free space"
        ) from error
