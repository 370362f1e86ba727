"""Formulas for people who write specifications: ``opened ~ (sender + length) ** 2``.

formulaic turns the text into a tree, and this module only walks the tree: it looks up no name and evaluates nothing. It
refuses function calls, code in braces, and names that are no field. Devices never see a formula.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from formulaic.errors import FormulaParsingError, FormulaSyntaxError
from formulaic.parser import DefaultFormulaParser
from formulaic.parser.algos.tokenize import tokenize
from formulaic.parser.types import ASTNode, Token

from incrowd.errors import ConfigError

LONGEST = 20_000  # characters of the longest formula
MOST_CROSSES = 250_000  # the most crosses of one operator: all with all of 500 fields

TermSet = dict[frozenset[str], None]  # terms in order, each a set of fields; the intercept has no fields
_INTERCEPT: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class ParsedFormula:
    """The response, the terms and the intercept of a formula."""

    response: str
    terms: tuple[tuple[str, ...], ...]
    intercept: bool


def read_formula(formula: str, *, fields: Sequence[str]) -> ParsedFormula:
    """Read a formula; main effects come first, then crosses, each in the order of the formula.

    Operators are ``~``, ``+``, ``-``, ``:`` (a cross) and ``*`` (both and their cross). ``** 2`` or ``^ 2`` adds all
    crosses of two, ``.`` is every field but the response, 1 and 0 set the intercept (by default 1).

    Guarantee: nothing of the formula runs, and its size bounds the work.
    """
    if len(formula) > LONGEST:
        raise ConfigError(field="formula", value=f"{len(formula)} characters", remedy=f"give at most {LONGEST}")
    try:
        for token in tokenize(formula):
            if token.kind is Token.Kind.PYTHON:
                raise _refused(token, "only fields and operators are allowed; nothing is computed")
        return _statement(DefaultFormulaParser().get_ast(formula), formula, tuple(fields))
    except (FormulaParsingError, FormulaSyntaxError, RecursionError) as error:
        problem = str(error).partition("\n")[0] or type(error).__name__
        raise ConfigError(field="formula", value=formula, remedy=f"it cannot be read: {problem}") from error


def _statement(tree: object, formula: str, fields: Sequence[str]) -> ParsedFormula:
    if not (isinstance(tree, ASTNode) and tree.operator.symbol == "~" and len(tree.args) == 2):
        raise _refused(formula, "write the response, ~ and the terms: response ~ first + second")
    name = _text(tree.args[0])
    if name not in fields:
        raise _refused(name or formula, f"the response is one of the fields: {', '.join(fields)}")
    group = _group(tree.args[1], fields, response=name)
    terms = sorted((term for term in group if term), key=len)
    ordered = tuple(tuple(sorted(term, key=fields.index)) for term in terms)
    return ParsedFormula(response=name, terms=ordered, intercept=_INTERCEPT in group)


def _group(tree: object, fields: Sequence[str], *, response: str) -> TermSet:
    """The terms of a tree, arguments before their node; without recursion: a sum of a thousand fields is that deep."""
    waiting: list[tuple[object, bool]] = [(tree, False)]
    done: list[TermSet] = []
    while waiting:
        node, ready = waiting.pop()
        if not isinstance(node, ASTNode):
            done.append(_leaf(node, fields))
            continue
        arguments = _arguments(node)
        if not ready:
            waiting.append((node, True))
            waiting.extend((argument, False) for argument in reversed(arguments))
        elif node.operator.symbol == ".":
            done.append({frozenset([name]): None for name in fields if name != response})
        else:
            first = len(done) - len(arguments)
            done[first:] = [_combined(node, done[first:])]
    return done[0]


def _leaf(leaf: object, fields: Sequence[str]) -> TermSet:
    text = _text(leaf)
    if text == "1":
        return {_INTERCEPT: None}
    if text in fields:
        return {frozenset([text]): None}
    raise _refused(leaf, f"it is no field; the fields are {', '.join(fields)}")


def _text(leaf: object) -> str:
    return str(leaf.token) if isinstance(leaf, Token) else ""


def _arguments(node: Any) -> list[object]:
    """The arguments of a node; of a power the base alone, once."""
    arguments = list(node.args)
    if node.operator.symbol in ("**", "^"):
        base, power = arguments
        if _text(power) != "2":
            raise _refused(power, "** and ^ take a 2 on their right: all crosses of two")
        return [base]
    return arguments


def _combined(node: Any, groups: Sequence[TermSet]) -> TermSet:
    symbol = str(node.operator.symbol)
    first, last = groups[0], groups[-1]  # a power has one group
    if symbol == "+":
        return {**first, **last}
    if symbol == "-" and len(groups) == 2:
        return {term: None for term in first if term not in last}
    if symbol == ":":
        return _crosses(first, last)
    if symbol in ("*", "**", "^"):
        return {**first, **last, **_crosses(first, last)}
    raise _refused(symbol, "of the operators only ~ + - : * ** ^ and . are known")


def _crosses(first: TermSet, second: TermSet) -> TermSet:
    if len(first) * len(second) > MOST_CROSSES:
        raise _refused(f"{len(first)} by {len(second)} terms", f"at most {MOST_CROSSES} crosses at once")
    crosses = {one | other: None for one, other in product(first, second)}
    for term in crosses:
        if len(term) > 2:
            raise _refused(":".join(sorted(term)), "crosses are of two fields")
    return crosses


def _refused(part: object, remedy: str) -> ConfigError:
    return ConfigError(field="formula", value=str(part)[:200], remedy=remedy)
