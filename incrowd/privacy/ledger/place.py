"""Where a ledger lies, and everything that remembers how far it had come."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from incrowd.errors import ConfigError, LedgerMismatch, LedgerMisplaced, LedgerRolledBack
from incrowd.privacy.ledger.registry import Registered, Registry, RegistryMark
from incrowd.privacy.ledger.witness import Mark, Witness, WitnessFile

Location = str | PathLike[str]


@dataclass(frozen=True, kw_only=True)
class LedgerPlace:
    """A ledger's file, by its own name; its witness; the witnesses beside other names that lead to the file.

    `registry` is the user's, where there is one, and `known` what it says is at this place.

    Edge cases: another witness than the one that is registered for this place is refused (`LedgerMismatch`).
    """

    path: Path
    witness: WitnessFile
    others: tuple[WitnessFile, ...] = ()
    registry: Registry | None = None
    known: Registered | None = None

    @classmethod
    def of(cls, path: Location, witness: Location | None = None) -> "LedgerPlace":
        """The place that a path leads to, through symbolic links."""
        location = Path(path).resolve()
        registry = Registry.existing()
        known = None if registry is None else registry.at(location)
        named = None if witness is None else Path(witness).resolve()
        if known is not None and named not in (None, known.witness):
            raise LedgerMismatch(
                f"the witness of {location} is {known.witness}, not {named}: leave it out, or have it moved with "
                f"`incrowd ledger move {location} {location} --witness {named}`"
            )
        its = known.witness if known is not None else named or beside(location)
        around = dict.fromkeys(beside(name) for name in _names(Path(path)))
        others = tuple(WitnessFile(other) for other in around if other != its and other.exists())
        return cls(path=location, witness=WitnessFile(its), others=others, registry=registry, known=known)

    @property
    def witnesses(self) -> tuple[WitnessFile, ...]:
        """All witness files."""
        return (self.witness, *self.others)

    def all_witnesses(self) -> list[Witness]:
        """The witness files that are there, and the registry where it knows the place.

        Edge cases: where there is none, the witness file that should be there, which then is missed.
        """
        witnesses: list[Witness] = [witness for witness in self.witnesses if witness.path.exists()]
        if self.known is not None and self.registry is not None:
            witnesses.append(RegistryMark(self.registry, self.known.id))
        return witnesses or [self.witness]

    def registered(self, ledger: str, *, write: bool) -> RegistryMark | None:
        """The registry as a witness of the ledger of this id, which was found at this place.

        Edge cases: a ledger that belongs elsewhere, or one that was closed and is to be written, raises
        `LedgerMisplaced`; another ledger than the one that belongs here `LedgerRolledBack`.
        """
        if self.registry is None:
            return None
        its = self.registry.by_id(ledger)
        if its is None:
            if self.known is None:
                return None
            raise LedgerRolledBack(
                f"{self.path} is another ledger than the one that is registered there: put the right one back"
            )
        if its.path != self.path:
            raise LedgerMisplaced(
                f"{self.path} is a copy of the ledger at {its.path}, which is the one that is charged: use that; if "
                f"it was moved here by hand, say so with `incrowd ledger move {its.path} {self.path}`"
            )
        if its.retired and write:
            raise LedgerMisplaced(
                f"{self.path} was closed by a deliberate fresh start on the same data: begin a new run, which is "
                "charged to the new ledger"
            )
        return RegistryMark(self.registry, ledger)

    def check_beginning(self, given: Mapping[str, object]) -> None:
        """A ledger may be begun here with these terms, of which none is missing (`ConfigError`)."""
        self.check_not_removed()
        for name, value in given.items():
            if value is None:
                remedy = f"there is no ledger at {self.path} yet, and a new one needs it"
                raise ConfigError(field=name, value=None, remedy=remedy)

    def check_not_removed(self) -> None:
        """Nothing remembers a ledger here (`LedgerRolledBack`)."""
        seen = [(str(witness), witness.read()) for witness in self.witnesses]
        if self.known is not None and self.registry is not None:
            seen.append((str(self.registry.path), self.known.mark))
        for name, mark in seen:
            if mark is not None:
                raise LedgerRolledBack(_gone(self.path, name, mark))


def _gone(path: Path, witness: str, mark: Mark) -> str:
    return (
        f"{path} is gone or empty, but its witness {witness} saw {mark.entries} entries: put the ledger back, or, if "
        f"it was moved by hand, say where it is with `incrowd ledger move {path} NEW`. If it is lost, `incrowd ledger "
        "fresh` starts afresh on the spent data, and the new ledger says so for good"
    )


def beside(path: Path) -> Path:
    """Where the witness of a ledger is unless another place is named."""
    return path.with_name(f"{path.name}.witness")


def _names(path: Path) -> list[Path]:
    """Every name that the file goes by on the way through symbolic links, its own first."""
    name, names = path.absolute(), [path.resolve()]  # which refuses links that lead round in circles
    while name.is_symlink():
        name = name.parent.resolve() / name.name
        names.append(name)
        name = name.parent / name.readlink()
    return names
