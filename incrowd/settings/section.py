"""A section of the settings: exact types, and errors that name what is wrong."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, ValidationError

from incrowd.settings.explained import explained

Numbers = Annotated[tuple[float, ...], Field(strict=False)]
Range = Annotated[tuple[float, float], Field(strict=False)]
Words = Annotated[tuple[str, ...], Field(strict=False)]
Every = Annotated[int, Field(ge=1)]
Counts = Annotated[tuple[Every, ...], Field(strict=False)]


class Section(BaseModel):
    """A section of the file: exact types, finite numbers, no other keys, no changes afterwards."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    if not TYPE_CHECKING:  # so that types are checked by the fields

        def __init__(self, /, **values: Any) -> None:
            """What cannot be used is a `ConfigError`."""
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise explained(error, type(self)) from error

        __init__.__pydantic_base_init__ = True  # sections in sections are pydantic's, which knows where they are

    def replaced(self, **changes: Any) -> Self:
        """The same with other values, checked as if they were all new."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)

    def named(self, section: str, *names: str) -> dict[str, Any]:
        """Some values by the names that they have in a file."""
        return {f"{section}.{name}": getattr(self, name) for name in names}


def tag(key: str, default: str, *, own: str | None = None) -> Discriminator:
    """Which of several sections is meant: the one that `key` names, or `own` where that is a key."""

    def tag_of(value: Any) -> str:
        if isinstance(value, Mapping):
            return str(value.get(key, own if own in value else default))
        return str(getattr(value, key, default))

    return Discriminator(tag_of)
