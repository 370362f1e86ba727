"""Names of clients that everybody knows: silos, which are parties, each with a folder of its own."""

import re

from incrowd.errors import ConfigError

_SAFE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9 ._-]{0,62}[A-Za-z0-9_-])?")
_RESERVED = re.compile(r"(the )?server|text|(con|prn|aux|nul|(com|lpt)[0-9])(\..*)?", re.IGNORECASE)
"""The server's own names, that of all statements' text, and what no file may be called on Windows."""


def check_safe(names: tuple[str, ...]) -> None:
    """Refuse names that cannot be those of folders, each of its own, on every system."""
    for name in names:
        if not _SAFE.fullmatch(name) or _RESERVED.fullmatch(name):
            remedy = (
                "it is to be a folder's: use up to 64 letters, digits, '-', '_', '.' and blanks, a letter or a digit "
                "first, not 'server'; or leave names out, and the silos are called silo-1, silo-2, ..."
            )
            raise ConfigError(field="names", value=name, remedy=remedy)
    if len({name.casefold() for name in names}) != len(names):
        remedy = "two of them are the same folder where case does not count: rename one"
        raise ConfigError(field="names", value=names, remedy=remedy)


def check_names(names: tuple[str, ...], *, actual: tuple[str, ...], public: bool) -> None:
    """Refuse stated names that are not those of the clients who are there, in their order.

    Guarantee: of private clients, the refusal does not say which names are there, nor how many.
    """
    check_safe(names)
    if tuple(sorted(names)) == actual and names != actual:
        raise ConfigError(field="names", value=names, remedy=f"give them in order: {', '.join(actual)}")
    if names != actual:
        shown = f": they are {', '.join(actual)}" if public else ", which are for their owner to see"
        raise ConfigError(field="names", value=names, remedy=f"these are not the clients in the table{shown}")
