"""How much one client may say: the section `privacy.clip` of the settings."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Tag

from incrowd.errors import ConfigError
from incrowd.privacy.mechanism.clipping import (
    Clip,
    ElementwiseClip,
    FixedClip,
    MedianClip,
    NormalisedClip,
    PerLayerClip,
    QuantileClip,
)
from incrowd.privacy.plan.third_party import ThirdPartyClip
from incrowd.settings.section import Numbers, Section, tag


class NormalisedSection(Section):
    """Every contribution has the same norm."""

    kind: Literal["normalised"] = "normalised"
    clip_norm: float = 1.0

    def clip(self, parts: tuple[int, ...], cohort: float) -> Clip:
        """The clip, for contributions of these layers and an expected cohort."""
        return NormalisedClip(clip_norm=self.clip_norm)


class FixedSection(Section):
    """No contribution is longer than a constant."""

    kind: Literal["fixed"]
    clip_norm: float

    def clip(self, parts: tuple[int, ...], cohort: float) -> Clip:
        """See `NormalisedSection.clip`."""
        return FixedClip(clip_norm=self.clip_norm)


class PerLayerSection(Section):
    """No layer of a contribution is longer than its own constant."""

    kind: Literal["per-layer"]
    clip_norms: Numbers

    def clip(self, parts: tuple[int, ...], cohort: float) -> Clip:
        """See `NormalisedSection.clip`."""
        if len(self.clip_norms) != len(parts):
            raise ConfigError(
                field="clip.clip_norms", value=self.clip_norms, remedy=f"give one for each of the {len(parts)} layers"
            )
        return PerLayerClip(clip_norms=self.clip_norms, parts=parts)


class ElementwiseSection(Section):
    """No number of a contribution is larger than a constant."""

    kind: Literal["elementwise"]
    limit: float

    def clip(self, parts: tuple[int, ...], cohort: float) -> Clip:
        """See `NormalisedSection.clip`."""
        return ElementwiseClip(limit=self.limit, size=sum(parts))


class QuantileSection(Section):
    """The bound follows a quantile of the norms, privately; the bit noise is a twentieth of the cohort by default."""

    kind: Literal["quantile"]
    clip_norm: float = 0.1
    bit_noise: float | None = None
    quantile: float = 0.5
    learning_rate: float = 0.2

    def clip(self, parts: tuple[int, ...], cohort: float) -> Clip:
        """See `NormalisedSection.clip`."""
        return QuantileClip(
            clip_norm=self.clip_norm,
            bit_noise=cohort / 20 if self.bit_noise is None else self.bit_noise,
            quantile=self.quantile,
            learning_rate=self.learning_rate,
        )


class MedianSection(Section):
    """The paper's clip, which is NOT private; every statement of such a run notes that."""

    kind: Literal["median"]
    floor: float = 1e-12

    def clip(self, parts: tuple[int, ...], cohort: float) -> MedianClip:
        """See `NormalisedSection.clip`."""
        return MedianClip(floor=self.floor)


class ThirdPartySection(Section):
    """A registered clip function of another package (`incrowd.types.ThirdPartyClip`), with its bound."""

    kind: Literal["third-party"]
    name: str
    clip_norm: float

    def clip(self, parts: tuple[int, ...], cohort: float) -> Clip:
        """See `NormalisedSection.clip`."""
        return ThirdPartyClip(name=self.name, clip_norm=self.clip_norm)


def _clip_section(value: Any) -> Any:
    """A clip as its section; whatever else there is stays for pydantic to judge."""
    for kind, (clip, given) in _CLIPS.items():
        if isinstance(value, clip):
            return {"kind": kind, **{name: getattr(value, name) for name in given}}
    return value


_CLIPS: dict[str, tuple[type, tuple[str, ...]]] = {
    "normalised": (NormalisedClip, ("clip_norm",)),
    "fixed": (FixedClip, ("clip_norm",)),
    "per-layer": (PerLayerClip, ("clip_norms",)),
    "elementwise": (ElementwiseClip, ("limit",)),
    "quantile": (QuantileClip, ("clip_norm", "bit_noise", "quantile", "learning_rate")),
    "median": (MedianClip, ("floor",)),
    "third-party": (ThirdPartyClip, ("name", "clip_norm")),
}


ClipSection = Annotated[
    Annotated[NormalisedSection, Tag("normalised")]
    | Annotated[FixedSection, Tag("fixed")]
    | Annotated[PerLayerSection, Tag("per-layer")]
    | Annotated[ElementwiseSection, Tag("elementwise")]
    | Annotated[QuantileSection, Tag("quantile")]
    | Annotated[MedianSection, Tag("median")]
    | Annotated[ThirdPartySection, Tag("third-party")],
    tag("kind", "normalised"),
    BeforeValidator(_clip_section),
]

if TYPE_CHECKING:
    _Clips = FixedClip | NormalisedClip | PerLayerClip | ElementwiseClip | QuantileClip | MedianClip | ThirdPartyClip
    AnyClip = ClipSection | _Clips
else:
    AnyClip = ClipSection


def clip_of(wanted: AnyClip, parts: tuple[int, ...], cohort: float) -> Clip | MedianClip:
    """The clip, for contributions of these layers and an expected cohort."""
    section: ClipSection = _clip_section(wanted)  # validated settings hold sections: this is for types
    return section.clip(parts, cohort)
