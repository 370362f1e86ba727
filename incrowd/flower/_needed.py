"""Whether what this room is made of is there."""

from importlib.util import find_spec

from incrowd.errors import ConfigError


def need_flower() -> None:
    """Refuse at once, by name, where Flower is not installed."""
    for package in ("flwr", "ray", "cryptography"):
        if find_spec(package) is None:
            raise ConfigError(field="package", value=package, remedy="pip install 'incrowd[flower]' brings it")
