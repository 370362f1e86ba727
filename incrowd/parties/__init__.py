"""Parties that guard themselves, and the server that asks them, over any transport.

| module                     | holds                                                                     |
| -------------------------- | ------------------------------------------------------------------------- |
| `frames`                   | signed messages, read only where length and signature are right           |
| `offer`                    | a server's offer with its plans, and the rounds of it                     |
| `policy`                   | the owner's rules, and the file `party.toml` that states them             |
| `guard`                    | a party's memory, its own ledger, its day's limit                         |
| `contribution`             | a party's part of a round: open, noised or masked                         |
| `participant`              | the party: one door, with the guard in front                              |
| `folder`, `keys`           | its folder, own data and training; keys, enrolment, invitation            |
| `roster`, `secure_sum`     | parties that know each other, and sums whose parts stay masked            |
| `asking`, `network`        | questions over any transport, and the answers, checked                    |
| `served`, `server`         | a run over the network; enrolled parties, their acceptance, evaluations   |
"""

import typing

from incrowd._lazy import lazily as _lazily

if typing.TYPE_CHECKING:
    from incrowd.parties.asking import Transport
    from incrowd.parties.folder import PartyFolder
    from incrowd.parties.participant import Participant
    from incrowd.parties.policy import PartyPolicy
    from incrowd.parties.roster import Card, Roster
    from incrowd.parties.secure_sum import Member, SumPlan, SumServer
    from incrowd.parties.server import PartyServer
    from incrowd.privacy.paid import ShareRun

__all__ = [
    "Card",
    "Member",
    "Participant",
    "PartyFolder",
    "PartyPolicy",
    "PartyServer",
    "Roster",
    "ShareRun",
    "SumPlan",
    "SumServer",
    "Transport",
]

__getattr__ = _lazily(
    __name__,
    {
        "incrowd.parties.asking": ("Transport",),
        "incrowd.parties.folder": ("PartyFolder",),
        "incrowd.parties.participant": ("Participant",),
        "incrowd.parties.policy": ("PartyPolicy",),
        "incrowd.parties.roster": ("Card", "Roster"),
        "incrowd.parties.secure_sum": ("Member", "SumPlan", "SumServer"),
        "incrowd.parties.server": ("PartyServer",),
        "incrowd.privacy.paid": ("ShareRun",),
    },
)
