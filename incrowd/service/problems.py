"""What may be wrong with a request: a name for programs, a sentence for people, the status, and the bytes of it."""

import json
from dataclasses import dataclass
from functools import cached_property

from incrowd.drawdiscard.desk import Reason

Headers = list[tuple[bytes, bytes]]

ALWAYS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
]
"""Nothing that is served is guessed at, framed, or kept by anyone between."""

OPEN: Headers = [
    (b"access-control-allow-origin", b"*"),
    (
        b"access-control-expose-headers",
        b"incrowd-fingerprint, incrowd-gamma, incrowd-ticket, incrowd-outcome, retry-after",
    ),
]
"""Any page may be a device: drawing and answering need no cookie and no login, so that no page can borrow anyone's."""


@dataclass(frozen=True)
class Problem:
    """A request that is turned away, and what to do about it."""

    status: int
    name: str
    remedy: str
    retry_after: int | None = None

    @cached_property
    def body(self) -> bytes:
        """What is sent: JSON."""
        return json.dumps({"reason": self.name, "remedy": self.remedy}).encode()

    @cached_property
    def headers(self) -> Headers:
        """Headers for `body`; open to every page, so that a device in one can read why."""
        later = [] if self.retry_after is None else [(b"retry-after", b"%d" % self.retry_after)]
        length = b"%d" % len(self.body)
        return [(b"content-type", b"application/json"), (b"content-length", length), *later, *ALWAYS, *OPEN]


FAILED = Problem(500, "failed", "this is a mistake of the server's: tell who runs it")
NOT_FOUND = Problem(404, "not_found", "there is nothing of this name: docs/service.md has what there is")
NOT_ALLOWED = Problem(405, "method_not_allowed", "this name takes another method: docs/service.md says which")
LENGTH_REQUIRED = Problem(411, "length_required", "state the length of the body in content-length; nothing chunked")
TOO_LARGE = Problem(413, "too_large", "send four bytes for each weight, and nothing else")
AWAY = Problem(503, "away", "the pool is out of reach for the moment: send the same again after retry-after seconds", 1)

OF_REASON: dict[Reason, Problem] = {
    Reason.OTHER_SPECIFICATION: Problem(
        409, "other_specification", "read /v1/specification again: this answers another one, and cannot count"
    ),
    Reason.LATE: Problem(
        409, "late", "draw again, and add the same noised gradient to what you draw: it costs nothing"
    ),
    Reason.NOT_WEIGHTS: Problem(400, "not_weights", "send one finite little-endian float32 for each weight"),
    Reason.FORGED: Problem(403, "forged", "send the ticket that came with the draw, as it came"),
    Reason.UNLIKE: Problem(
        422, "unlike", "this is hardly what an honest device sends; one in a hundred honest ones is"
    ),
    Reason.NOT_ADMITTED: Problem(
        403, "not_admitted", "send the operator's token: incrowd-admission: ACCOUNT.SIGNATURE"
    ),
    Reason.DAY_OVER: Problem(
        403, "day_over", "the account's contributions of this day were accepted: wait for the next"
    ),
}
"""What is said of an answer that is turned away."""

OUTCOMES = {reason: reason.name.lower().encode() for reason in Reason}
"""The header ``incrowd-outcome``."""
