"""What a URL looks like, as fields of a specification: features in [0, 1] that a phone computes from its own table.

Nothing is looked up or opened. Every range, word and ending below is public and was chosen by hand; nothing is fitted
to the addresses of anyone.
"""

import math
from collections.abc import Sequence

from harness.arrays import Floats
from incrowd import Specification
from incrowd.drawdiscard import part_of

_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_DIGITS = "0123456789"


def _words(text: str) -> list[str]:
    return text.split()


_LENGTHS: dict[str, tuple[str, Sequence[int]]] = {
    "length": ("all", (25, 35, 45, 60, 80, 110, 150, 250)),
    "host_length": ("host", (8, 11, 14, 17, 20, 24, 28, 32, 40)),
    "name_length": ("name", (4, 6, 8, 10, 13, 16, 20)),
    "inner_length": ("inner", (1, 4, 8, 12, 16, 24)),
    "path_length": ("path", (1, 2, 6, 10, 15, 20, 30, 40, 60, 90)),
    "query_length": ("query", (1, 8, 16, 32, 64, 128)),
    "fragment_length": ("fragment", (1, 10)),
    "port": ("port", (1,)),
}
_COUNTS: dict[str, tuple[str, str, Sequence[int]]] = {
    "dots_of_host": (".", "host", (2, 3, 4, 5)),
    "hyphens_of_host": ("-", "host", (1, 2, 3)),
    "depth": ("/", "path", (2, 3, 4, 5, 6, 7)),
    "digits_of_host": (_DIGITS, "host", (1, 2, 4, 6, 10)),
    "digits_of_path": (_DIGITS, "path", (1, 2, 4, 8, 12, 16)),
    "parameters": ("=", "query", (1, 2, 3)),
    "number_for_host": (_DIGITS, "ending", (1,)),
    "mail_in_rest": ("@", "rest", (1,)),
}
_RUNS: dict[str, tuple[str, str, Sequence[int]]] = {
    "longest_word": (_LETTERS, "rest", (8, 12, 16, 20, 28, 32)),
    "longest_consonants": ("bcdfghjklmnpqrstvwxz", "host", (4, 5, 6)),
    "fingerprint": (_DIGITS + "abcdef", "rest", (16,)),
}
_ENDINGS = _words(
    "app at au be br buzz ca cc cf ch cl club cn co com cz de dev dk edu es eu fi fr ga gov gq hk hu icu id ie in info "
    "io it jp link me ml mx net nl no nz online org pl pt ro ru se shop site tk top tv uk us vn xyz za"
)
_CHEAP = _words("buzz cc cf click club ga gq icu live ml online pw shop site tk top vip ws xyz")
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
_GROUPS: dict[str, Sequence[str]] = {
    "bank": ("hsbc", "lloyds", "barclays", "santander", "chase", "wells", "agricole", "bnp", "ingdirect", "smbc"),
    "network": ("facebook", "fb-", "instagram", "whatsapp", "telegram", "linkedin", "messenger"),
    "office": ("microsoft", "office", "outlook", "onedrive", "sharepoint", "o365", "adobe", "docusign", "dropbox"),
    "shop": ("ebay", "rakuten", "alibaba", "aliexpress", "walmart", "netflix"),
    "carrier": ("dhl", "ups-", "fedex", "usps", "royalmail", "laposte", "delivery", "parcel"),
    "game": ("steam", "runescape", "roblox", "pubg", "garena"),
    "coin": ("wallet", "crypto", "bitcoin", "blockchain", "binance", "coinbase"),
    "way_in": ("login", "log-in", "signin", "sign-in", "verif", "secure", "account", "update", "auth", "confirm"),
    "state": ("impots", "ameli", "caf", "hmrc", "irs", "refund"),
}
_GUESTS = _words(
    "000webhost blogspot duckdns firebaseapp linktr repl sites.google square tinyurl web.app webflow weebly wix"
)
_OTHER_GUESTS = (
    *("appspot", "amazonaws", "azure", "ddns", "docs.google", "forms.", "github", "glitch", "googleapis"),
    *("herokuapp", "netlify", "ngrok", "sendgrid", "windows.net", "wordpress", "workers.dev"),
)
_FILES = (".php", ".html", ".htm", ".aspx", ".asp", ".pdf", ".svg", ".xml", ".json")
_FILE_GROUPS = {
    "picture": (".png", ".jpg", ".jpeg", ".gif", ".ico", ".mp4"),
    "archive": (".zip", ".exe", ".apk", ".rar"),
}
_BESIDE_WWW = ("http", "long", "asks", "hyphen", "digit", "script", "inner")
"""What counts differently where the host begins with ``www``."""


_TRIGRAMS = 7
"""Buckets of three characters of the host: as many as make the paper's 387 weights of it all."""


def _counts(part: str, **keys: object) -> dict[str, object]:
    return {"type": "count", "part": part, **keys}


def _among(part: str, words: Sequence[str], **keys: object) -> dict[str, object]:
    return {"type": "words", "part": part, "words": list(words), **keys}


def _fields() -> dict[str, dict[str, object]]:
    fields = {
        "in_host": _counts("host", characters=_LETTERS, each=True, most=4),
        "after_host": _counts("rest", characters=_LETTERS, each=True, most=8),
        "marks_of_path": _counts("path", characters="-_.~%@&=+,:", each=True, most=4),
        "marks_of_query": _counts("query", characters="-_./%&", each=True, most=4),
        "ending": _among("ending", _ENDINGS, where="whole"),
        "host_words": _among("host", _HOST_WORDS),
        "rest_words": _among("rest", _REST_WORDS),
        "guests": _among("host", _GUESTS),
        "other_guests": _among("host", _OTHER_GUESTS, any=True),
        "files": _among("path", _FILES, where="end"),
        "cheap": _among("ending", _CHEAP, where="whole", any=True),
        "com_inside": _among("host", (".com.", ".net.", ".org."), any=True),
        "slash": _among("path", ("/",), where="end"),
        "capitals": _counts("all", characters="ABCDEFGHIJKLMNOPQRSTUVWXYZ", lower=False, steps=[1]),
        "vowels": _counts("name", characters="aeiou", most=8),
        "www": _among("host", ("www.",), where="start", any=True),
        "http": _among("scheme", ("http",), where="whole", any=True),
        "long": _counts("path", steps=[2]),
        "asks": _counts("query", steps=[1]),
        "hyphen": _counts("host", characters="-", steps=[1]),
        "digit": _counts("host", characters=_DIGITS, steps=[1]),
        "script": _among("path", (".php",), where="end", any=True),
        "inner": _counts("inner", steps=[1]),
        "trigrams": {
            "type": "text",
            "part": "host",
            "units": "characters",
            "shortest": 3,
            "longest": 3,
            "buckets": _TRIGRAMS,
        },
    }
    fields |= {name: _counts(part, steps=list(steps)) for name, (part, steps) in _LENGTHS.items()}
    fields |= {name: _counts(part, characters=of, steps=list(steps)) for name, (of, part, steps) in _COUNTS.items()}
    fields |= {
        name: _counts(part, characters=of, run=True, steps=list(steps)) for name, (of, part, steps) in _RUNS.items()
    }
    fields |= {name: _among("all", words, any=True) for name, words in _GROUPS.items()}
    fields |= {name: _among("path", words, where="end", any=True) for name, words in _FILE_GROUPS.items()}
    return fields


def _specification() -> Specification:
    fields = {name: field | {"column": "url"} for name, field in _fields().items()}
    crosses = [["www", name] for name in _BESIDE_WWW]
    alone = [[name] for name in fields if name not in _BESIDE_WWW or name == "http"]
    return Specification.of(
        {
            "name": "phishing",
            "fields": {"phishing": {"type": "boolean"}, **fields},
            "response": "phishing",
            "terms": [*alone, *crosses],
            "link": "logistic",
            "gamma": 0.001,
            "clip": 1.0,
            "epsilon": math.log(32),
            "privacy": "feature",
        }
    )


SPECIFICATION = _specification()
"""With the paper's gamma, clip and epsilon; a model of the paper's 387 weights."""

FEATURES = SPECIFICATION.columns
"""By name, in the order of their columns."""


def url_features(urls: Sequence[str]) -> Floats:
    """The features of these URLs, a row each.

    Guarantee: each is within [0, 1] and depends on the one text alone, whatever the text is.
    """
    features: Floats = SPECIFICATION.features({"url": urls}, count=len(urls)).toarray()
    return features


def host_of(url: str) -> str:
    """The host, as the features see it."""
    return part_of(url, part="host", lower=True) or ""
