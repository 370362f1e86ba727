"""Checks that Flower is installed."""

from importlib.util import find_spec

from incrowd.errors import ConfigError


def need_flower() -> None:
    """Raise an error that names the missing package."""
    for package in ("flwr", "ray", "cryptography"):
        if find_spec(package) is None:
            raise ConfigError(field="package", value=package, remedy="pip install 'incrowd[flower]' brings it")
