import pytest

from incrowd.drawdiscard.formula import LONGEST, MOST_CROSSES, read_formula
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import ConfigError
from tests.drawdiscard.known_weights import KEYS, specification

NAMES = ("y", "a", "b", "c")


@pytest.mark.parametrize(
    ("text", "terms", "intercept"),
    [
        ("y ~ a", ["a"], True),
        ("y ~ a + b", ["a", "b"], True),
        ("y ~ b + a + b", ["b", "a"], True),
        ("y ~ a:b", ["a:b"], True),
        ("y ~ b:a", ["a:b"], True),
        ("y ~ a*b", ["a", "b", "a:b"], True),
        ("y ~ a:b + c", ["c", "a:b"], True),
        ("y ~ (a + b + c)**2", ["a", "b", "c", "a:b", "a:c", "b:c"], True),
        ("y ~ (a + b + c)^2 - a:c", ["a", "b", "c", "a:b", "b:c"], True),
        ("y ~ ((a + b)**2)", ["a", "b", "a:b"], True),
        ("y ~ (a + b):c", ["a:c", "b:c"], True),
        ("y ~ a:a", ["a"], True),
        ("y ~ .", ["a", "b", "c"], True),
        ("y ~ .**2 - c", ["a", "b", "a:b", "a:c", "b:c"], True),
        ("b ~ .", ["y", "a", "c"], True),
        ("y ~ 0 + a", ["a"], False),
        ("y ~ a - 1", ["a"], False),
        ("y ~ a + 1", ["a"], True),
        ("y ~ 1", [], True),
        ("y ~ `a`", ["a"], True),
    ],
)
def test_the_usual_notation(text: str, terms: list[str], intercept: bool) -> None:
    stated = read_formula(text, fields=NAMES)
    assert [":".join(term) for term in stated.terms] == terms
    assert stated.intercept == intercept
    assert stated.response == text[0]


@pytest.mark.parametrize(
    "text",
    [
        "y ~ log(a)",
        "y ~ C(a)",
        "y ~ {a + b}",
        "y ~ I(a**2)",
        "y ~ __import__('os').system('true')",
        "y ~ {open('/etc/passwd').read()}",
        "log(y) ~ a",
        "y ~ a.real",
        "y ~ 'a'",
        "y ~ 2",
        "y ~ 2*a",
        "y ~ a/b",
        "y ~ a | b",
        "y ~ a %in% b",
        "y ~ [a ~ b]",
        "y ~ a*b*c",
        "y ~ a:b:c",
        "y ~ (a + b + c)**3",
        "y ~ (a + b)**b",
        "y ~ ((a + b + c)**2)**2",
        "y ~ a ~ b",
        "y + a ~ b",
        "y ~ x",
        "x ~ a",
        "1 ~ a",
        "~ a",
        "a",
        "",
        "y ~ (a",
        "y ~ a +",
        "y ~ \\a",
        "y ~ a\x00",
        "y ~ " + "a + " * LONGEST + "b",
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_formula(text, fields=NAMES)


def test_the_work_is_bounded() -> None:
    fields = [f"x{number}" for number in range(1000)]
    assert len(read_formula("x0 ~ .", fields=fields).terms) == 999
    long = "x0 ~ " + " + ".join(fields[1:])
    assert len(read_formula(long, fields=fields).terms) == 999  # a tree as deep: read without recursion
    with pytest.raises(ConfigError, match=str(MOST_CROSSES)):
        read_formula("x0 ~ .**2", fields=fields)
    for wild in ("*".join(fields[1:40]), f"({' + '.join(fields[1:600])})**2", f"(({' + '.join(fields[1:90])})**2)**2"):
        with pytest.raises(ConfigError):  # formulaic's own terms would be 2^39 here
            read_formula(f"x0 ~ {wild}", fields=fields)
    nested = "y ~ " + "(" * 60 + "a + b" + ")**2" * 60  # would be 2^60 steps if each power copied its base
    assert len(read_formula(nested, fields=NAMES).terms) == 3


def test_a_formula_and_the_other_keys_make_a_specification() -> None:
    asked = specification()
    assert asked.response == "O"
    assert len(asked.terms) == 15
    assert asked.intercept
    assert not Specification.from_formula("O ~ 0 + B", **KEYS).intercept
