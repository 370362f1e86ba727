"""Formulas, for people who write specifications: ``opened ~ (sender + length) ** 2``.

formulaic reads the text and gives terms: no name is looked up, nothing is evaluated, and what is no field or plain
operator (a function call, code in braces) is refused. Devices never see a formula.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from formulaic.errors import FormulaParsingError, FormulaSyntaxError
from formulaic.parser import DefaultFormulaParser
from formulaic.parser.algos.tokenize import tokenize
from formulaic.parser.types import Token

from incrowd.errors import ConfigError

LONGEST = 20_000
"""Characters of the longest formula."""

MOST_CROSSES = 250_000
"""Of a formula with parentheses or a dot: with 500 fields, all with all."""


SIDES = ("lhs", "rhs")


@dataclass(frozen=True, kw_only=True)
class ParsedFormula:
    """What a formula states."""

    response: str
    terms: tuple[tuple[str, ...], ...]
    intercept: bool


def read_formula(formula: str, *, fields: Sequence[str]) -> ParsedFormula:
    """The response, the terms and whether there is an intercept; `ConfigError` where a formula is none.

    Of the usual notation it takes ``~``, ``+``, ``-``, ``:`` (a cross), ``*`` (both and their cross), ``** 2`` or
    ``^ 2`` (all and all crosses of two), parentheses, ``.`` (every field but the response), 1 and 0 (with and without
    an intercept, which is there by default). Main effects come first, then crosses, each in the order of the formula.
    """
    if len(formula) > LONGEST:
        raise ConfigError(field="formula", value=f"{len(formula)} characters", remedy=f"give at most {LONGEST}")
    try:
        _check(list(tokenize(formula)), fields)
        stated = DefaultFormulaParser().get_terms(formula, context={"__formulaic_variables_available__": list(fields)})
    except (FormulaParsingError, FormulaSyntaxError, RecursionError) as error:
        problem = str(error).partition("\n")[0] or type(error).__name__
        raise _refused(formula, f"it cannot be read: {problem}") from error
    response, group = ([[str(one) for one in term.factors] for term in getattr(stated, side, ())] for side in SIDES)
    if len(response) != 1 or response[0][0] not in fields or len(response[0]) > 1:
        raise _refused(formula, "write one field, the response, then ~ and the terms: response ~ first + second")
    terms = dict.fromkeys(
        tuple(sorted(set(factors) - {"1"}, key=fields.index)) for factors in group if factors != ["1"]
    )
    for term in terms:
        if len(term) > 2:
            raise _refused(":".join(term), "crosses are of two fields")
    return ParsedFormula(
        response=response[0][0],
        terms=tuple(sorted(terms, key=len)),
        intercept=["1"] in group,
    )


def _check(tokens: Sequence[Token], fields: Sequence[str]) -> None:
    """Refuse what is no field, number or plain operator, and more crosses than can be worked out."""
    names, marks, before = 0, set[str](), ""
    for token in tokens:
        text = str(token)
        if token.kind is Token.Kind.PYTHON:
            raise _refused(token, "only fields and operators are allowed; nothing is computed")
        if token.kind is Token.Kind.NAME and text not in fields:
            raise _refused(token, f"it is no field; the fields are {', '.join(fields)}")
        if (text == "2") != (before in ("**", "^")) or (token.kind is Token.Kind.VALUE and text not in "012."):
            raise _refused(token, "** and ^ take a 2 on their right, all crosses of two; else only 0 and 1 count")
        if token.kind is Token.Kind.OPERATOR and not set(text) <= set("~+-:*^."):
            raise _refused(token, "of the operators only ~ + - : * ** ^ and . are known")
        names += len(fields) if text == "." else token.kind is Token.Kind.NAME
        marks.update(text if token.kind is not Token.Kind.NAME else "")
        before = text
    if marks & set("*^:") and marks & set("(.") and names**2 > MOST_CROSSES:
        raise _refused(f"{names} by {names} terms", f"at most {MOST_CROSSES} crosses at once")


def _refused(part: object, remedy: str) -> ConfigError:
    return ConfigError(field="formula", value=str(part)[:200], remedy=remedy)
