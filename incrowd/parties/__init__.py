"""Parties that guard themselves, and the server that asks them, over any transport.

| module         | holds                                                                                 |
| -------------- | ------------------------------------------------------------------------------------- |
| `frames`       | signed messages, read only where length and signature are right                        |
| `offer`        | a server's offer: the plans, and how to train; it has a fingerprint                    |
| `policy`       | the owner's rules, and the file `party.toml` that states them                          |
| `guard`        | a party's memory, its own ledger, its day's limit                                      |
| `participant`  | the party: one door for offers and questions, the guard in front                       |
| `contribution` | its part of a round, for each unit of protection and each actor that adds noise        |
| `own_data`     | its own data, and the training on them for an offer                                    |
| `folder`, `keys` | its folder, its keys and enrolment, the server's invitation                          |
| `asking`       | the server's questions over a transport, without waiting for absent parties            |
| `network`      | the parts of a round and the answers of silos, checked                                 |
| `claims`       | statements of silos, recomputed                                                        |
| `server`, `served`, `evaluation` | the enrolled parties, the run, the scores on parties' examples       |
| `roster`, `secure_sum` | parties that know each other, and sums whose parts stay masked               |
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
