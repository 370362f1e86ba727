"""A specification of 44 weights, examples of it, and a server that turns hardly any honest answer away."""

from typing import Any

from incrowd.drawdiscard import Server, Specification
from tests.drawdiscard import mail

FIELDS = {**mail.FIELDS, "subject": {"type": "text", "buckets": 40, "column": "about"}}
SUBJECTS = ("hello there", "great prices today", "minutes of the meeting", "Größe 漢字", "win now")


def asked(**changes: object) -> Specification:
    keys = {**mail.KEYS, "fields": FIELDS, **changes}
    return Specification.from_formula("opened ~ sender + words + subject", **keys)


def letters(count: int = 20) -> list[dict[str, Any]]:
    return [{**row, "about": SUBJECTS[place % len(SUBJECTS)]} for place, row in enumerate(mail.mails(count))]


def server(**changes: object) -> Server:
    return Server(asked(**changes), turned_away=1e-9)
