"""Numbers in [0, 1] from the text of a URL alone, for a model that runs on a phone: nothing is looked up or opened.

Every range, word and ending below is public and was chosen by hand; nothing is fitted to the addresses of anyone.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.arrays import Floats

Feature = Callable[["Parts"], float]

_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_LONGEST_URL = 4_000
_ADDRESS = re.compile(r"[\d.]+|\[.*\]")
_CONSONANTS = re.compile(r"[bcdfghjklmnpqrstvwxz]+")
_CHANGES = re.compile(r"(?<=[a-z])(?=\d)|(?<=\d)(?=[a-z])")
_HEXADECIMAL = re.compile(r"[0-9a-f]{16}")
_WORDS = re.compile(r"[a-z0-9]+")
_SECOND_LEVELS = frozenset(("ac", "co", "com", "edu", "go", "gov", "ne", "net", "or", "org"))


@dataclass(frozen=True)
class Parts:
    """The parts of a URL, in lower case.

    Edge cases: whatever is not there is empty; every text has parts, and only its first 4,000 characters count.
    """

    text: str
    scheme: str
    host: str
    port: str
    path: str
    query: str
    fragment: str
    capitals: bool

    @classmethod
    def of(cls, url: str) -> "Parts":
        """The parts of this text."""
        written = url[:_LONGEST_URL].strip()
        before, separator, after = written.lower().partition("://")
        scheme, rest = (before, after) if separator else ("", before)
        end = min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))
        resource, _, fragment = rest[end:].partition("#")
        path, _, query = resource.partition("?")
        host, _, port = rest[:end].rpartition("@")[2].partition(":")
        capitals = any(letter.isupper() for letter in written.partition("://")[2])
        return cls(written.lower(), scheme, host, port, path, query, fragment, capitals)

    @cached_property
    def rest(self) -> str:
        """What follows the host."""
        return f"{self.path}?{self.query}#{self.fragment}"

    @cached_property
    def labels(self) -> list[str]:
        """What the dots of the host divide."""
        return self.host.split(".")

    @cached_property
    def ending(self) -> str:
        """The top-level domain."""
        return self.labels[-1]

    @cached_property
    def own(self) -> int:
        """Where in the labels the name is that someone registered; what comes before it is theirs to choose."""
        compound = len(self.labels) > 2 and len(self.ending) == 2 and self.labels[-2] in _SECOND_LEVELS
        return max(0, len(self.labels) - (3 if compound else 2))

    @cached_property
    def name(self) -> str:
        """The name that someone registered."""
        return self.labels[self.own]

    @cached_property
    def inner(self) -> str:
        """What comes before that name, but for a leading ``www``."""
        return ".".join(self.labels[self.has_www : self.own])

    @property
    def has_www(self) -> bool:
        """Whether the host begins as the hosts of web sites used to."""
        return self.labels[0] == "www"

    @property
    def is_address(self) -> bool:
        """Whether the host is a number rather than a name."""
        return _ADDRESS.fullmatch(self.host) is not None


def _share_of(character: str, where: str, most: int) -> Feature:
    return lambda parts: min(1.0, str(getattr(parts, where)).count(character) / most)


def _contains(word: str, where: str) -> Feature:
    return lambda parts: float(word in getattr(parts, where))


def _contains_any(words: tuple[str, ...], where: str) -> Feature:
    return lambda parts: float(any(word in getattr(parts, where) for word in words))


def _ends(ending: tuple[str, ...]) -> Feature:
    return lambda parts: float(parts.path.endswith(ending))


def _below(ending: str) -> Feature:
    return lambda parts: float(parts.ending == ending)


def _at_least(measure: Feature, bound: float) -> Feature:
    return lambda parts: float(measure(parts) >= bound)


def _is(condition: Callable[[Parts], object]) -> Feature:
    return lambda parts: float(bool(condition(parts)))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _digits(text: str) -> int:
    return sum(character.isdigit() for character in text)


def _changes(where: str, most: int) -> Feature:
    return lambda parts: min(1.0, len(_CHANGES.findall(getattr(parts, where))) / most)


def _vowels(parts: Parts) -> float:
    return sum(map(parts.name.count, "aeiou")) / max(1, len(parts.name))


def _longest(pieces: Iterable[str]) -> int:
    return max(map(len, pieces), default=0)


_MEASURES: dict[str, tuple[Feature, tuple[float, ...]]] = {
    "length": (lambda parts: len(parts.text), (25, 35, 45, 60, 80, 110, 150, 250)),
    "host length": (lambda parts: len(parts.host), (8, 11, 14, 17, 20, 24, 28, 32, 40)),
    "name length": (lambda parts: len(parts.name), (4, 6, 8, 10, 13, 16, 20)),
    "inner length": (lambda parts: len(parts.inner), (1, 4, 8, 12, 16, 24)),
    "path length": (lambda parts: len(parts.path), (1, 2, 6, 10, 15, 20, 30, 40, 60, 90)),
    "query length": (lambda parts: len(parts.query), (1, 8, 16, 32, 64, 128)),
    "fragment length": (lambda parts: len(parts.fragment), (1, 10)),
    "labels": (lambda parts: len(parts.labels), (3, 4, 5, 6)),
    "hyphens of the host": (lambda parts: parts.host.count("-"), (1, 2, 3)),
    "depth": (lambda parts: parts.path.rstrip("/").count("/"), (1, 2, 3, 4, 5, 6)),
    "digits of the host": (lambda parts: _digits(parts.host), (1, 2, 4, 6, 10)),
    "digits of the path": (lambda parts: _digits(parts.path), (1, 2, 4, 8, 12, 16)),
    "parameters": (lambda parts: parts.query.count("="), (1, 2, 3)),
    "longest word after the host": (lambda parts: _longest(_WORDS.findall(parts.rest)), (8, 12, 16, 20, 28, 32)),
    "longest consonants of the host": (lambda parts: _longest(_CONSONANTS.findall(parts.host)), (4, 5, 6)),
}
_ENDINGS = _words(
    "app at au be br buzz ca cc cf ch cl club cn co com cz de dev dk edu es eu fi fr ga gov gq hk hu icu id ie in info "
    "io it jp link me ml mx net nl no nz online org pl pt ro ru se shop site tk top tv uk us vn xyz za"
)
_CHEAP = frozenset(_words("buzz cc cf click club ga gq icu live ml online pw shop site tk top vip ws xyz"))
_HOST_WORDS = _words(
    "account amazon apple assets auth bank card client coin google help home https images login mail mobile online "
    "paypal post secure security service share sign support update verif web win"
)
_REST_WORDS = _words(
    "account admin amazon assets auth bank card cgi-bin chase client cmd confirm credit customer dhl docs document "
    "drive email fb file free help home http id images includes index invoice log login mail mobile office online "
    "orange pass password paypal post public redirect secure security service session sign signin support token "
    "update user verif view web webmail win wp-admin wp-content wp-includes www"
)
_WORD_GROUPS: dict[str, tuple[str, ...]] = {
    "a bank": ("hsbc", "lloyds", "barclays", "santander", "chase", "wells", "agricole", "bnp", "ingdirect", "smbc"),
    "a network": ("facebook", "fb-", "instagram", "whatsapp", "telegram", "linkedin", "messenger"),
    "an office": ("microsoft", "office", "outlook", "onedrive", "sharepoint", "o365", "adobe", "docusign", "dropbox"),
    "a shop": ("ebay", "rakuten", "alibaba", "aliexpress", "walmart", "netflix"),
    "a carrier": ("dhl", "ups-", "fedex", "usps", "royalmail", "laposte", "delivery", "parcel"),
    "a game": ("steam", "runescape", "roblox", "pubg", "garena"),
    "a coin": ("wallet", "crypto", "bitcoin", "blockchain", "binance", "coinbase"),
    "a way in": ("login", "log-in", "signin", "sign-in", "verif", "secure", "account", "update", "auth", "confirm"),
    "a state": ("impots", "ameli", "caf", "hmrc", "irs", "refund"),
}
_GUESTS = _words(
    "000webhost blogspot duckdns firebaseapp linktr repl sites.google square tinyurl web.app webflow weebly wix"
)
_OTHER_GUESTS = (
    *("appspot", "amazonaws", "azure", "ddns", "docs.google", "forms.", "github", "glitch", "googleapis"),
    *("herokuapp", "netlify", "ngrok", "sendgrid", "windows.net", "wordpress", "workers.dev"),
)
_FILES: dict[str, tuple[str, ...]] = {
    **{ending: (ending,) for ending in (".php", ".html", ".htm", ".aspx", ".asp", ".pdf", ".svg", ".xml", ".json")},
    "a picture": (".png", ".jpg", ".jpeg", ".gif", ".ico", ".mp4"),
    "an archive": (".zip", ".exe", ".apk", ".rar"),
}
_SHAPES: dict[str, Callable[[Parts], object]] = {
    "http": lambda parts: parts.scheme == "http",
    "www": lambda parts: parts.has_www,
    "www and a name": lambda parts: parts.has_www and parts.own == 1,
    "a name alone": lambda parts: parts.own == 0,
    "a number for a host": lambda parts: parts.is_address,
    "a port": lambda parts: parts.port,
    "no path": lambda parts: parts.path in ("", "/"),
    "a slash at the end": lambda parts: parts.path.endswith("/"),
    "capitals": lambda parts: parts.capitals,
    "a fingerprint": lambda parts: _HEXADECIMAL.search(parts.rest),
    "com inside of the host": lambda parts: not {"com", "net", "org"}.isdisjoint(parts.labels[:-1]),
    "an address of mail": lambda parts: "@" in parts.rest,
    "an unusual ending": lambda parts: parts.ending not in _ENDINGS,
    "an ending for little money": lambda parts: parts.ending in _CHEAP,
    "no www": lambda parts: not parts.has_www,
    "no www, a name alone": lambda parts: not parts.has_www and parts.own == 0,
    "no www, http": lambda parts: not parts.has_www and parts.scheme == "http",
    "no www, no path": lambda parts: not parts.has_www and parts.path in ("", "/"),
    "no www, a query": lambda parts: not parts.has_www and parts.query,
    "no www, hyphens": lambda parts: not parts.has_www and "-" in parts.host,
    "no www, digits": lambda parts: not parts.has_www and _digits(parts.host),
    "no www, a script": lambda parts: not parts.has_www and parts.path.endswith(".php"),
}


def _features() -> dict[str, Feature]:
    features: dict[str, Feature] = {}
    for character in _LETTERS:
        features[f"{character} in the host"] = _share_of(character, "host", 4)
        features[f"{character} after the host"] = _share_of(character, "rest", 8)
    features |= {f"{mark} in the path": _share_of(mark, "path", 4) for mark in "-_.~%@&=+,:"}
    features |= {f"{mark} in the query": _share_of(mark, "query", 4) for mark in "-_./%&"}
    for name, (measure, bounds) in _MEASURES.items():
        features |= {f"{name} >= {bound:g}": _at_least(measure, bound) for bound in bounds}
    features |= {f"ends in .{ending}": _below(ending) for ending in _ENDINGS}
    features |= {f"{word} in the host": _contains(word, "host") for word in _HOST_WORDS}
    features |= {f"{word} after the host": _contains(word, "rest") for word in _REST_WORDS}
    features |= {f"{group}, anywhere": _contains_any(words, "text") for group, words in _WORD_GROUPS.items()}
    features |= {f"a guest of {host}": _contains(host, "host") for host in _GUESTS}
    features["a guest of another"] = _contains_any(_OTHER_GUESTS, "host")
    features |= {f"a file: {name}": _ends(endings) for name, endings in _FILES.items()}
    features |= {name: _is(condition) for name, condition in _SHAPES.items()}
    features["vowels of the name"] = _vowels
    features["letters beside digits in the host"] = _changes("host", 4)
    features["letters beside digits after the host"] = _changes("rest", 8)
    return features


FEATURES = _features()
"""By name, in the order of their columns. With an intercept a model of them has as many weights as the paper's, 387."""


def url_features(urls: Iterable[str]) -> Floats:
    """The features of these URLs, a row each.

    Guarantee: each is within [0, 1] and depends on the one text alone, whatever the text is.
    """
    measures = tuple(FEATURES.values())
    rows = [[measure(parts) for measure in measures] for parts in map(Parts.of, urls)]
    return np.array(rows, np.float64).reshape(-1, len(measures))
