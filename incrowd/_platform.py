"""The platforms of incrowd: files can be locked there, so that no two processes spend the same budget."""

from importlib.util import find_spec
from sys import platform

from incrowd.errors import ConfigError


def check_platform() -> None:
    """Refuse at once where files cannot be locked.

    Edge cases: Windows has no fcntl: `ConfigError`.
    """
    if find_spec("fcntl") is None:
        remedy = "files cannot be locked here (no fcntl): use Linux, macOS, or on Windows its subsystem for Linux (WSL)"
        raise ConfigError(field="platform", value=platform, remedy=remedy)
