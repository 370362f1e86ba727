"""Formulas, for people who write specifications: ``opened ~ (sender + length) ** 2``.

formulaic reads the text and gives a tree. Here only this tree is walked: no name is looked up, nothing is evaluated,
and what is no field or plain operator (a function call, code in braces) is refused. Devices never see a formula.
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

LONGEST = 20_000
"""Characters of the longest formula."""

MOST_CROSSES = 250_000
"""Terms to cross with terms, at once: with 500 fields, all with all."""

TermSet = dict[frozenset[str], None]
"""Terms, each a set of fields, in order; the intercept is the term of no fields."""

_INTERCEPT: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class ParsedFormula:
    """What a formula states."""

    response: str
    terms: tuple[tuple[str, ...], ...]
    intercept: bool


def read_formula(formula: str, *, fields: Sequence[str]) -> ParsedFormula:
    """The response, the terms and whether there is an intercept.

    Of the usual notation it takes ``~``, ``+``, ``-``, ``:`` (a cross), ``*`` (both and their cross), ``** 2`` or
    ``^ 2`` (all and all crosses of two), parentheses, ``.`` (every field but the response), 1 and 0 (with and without
    an intercept, which is there by default). Main effects come first, then crosses, each in the order of the formula.

    Guarantee: nothing of the formula is run or looked up, and its size bounds the work.
    """
    if len(formula) > LONGEST:
        raise ConfigError(field="formula", value=f"{len(formula)} characters", remedy=f"give at most {LONGEST}")
    try:
        return _TreeReader(formula, tuple(fields)).statement(_tree(formula))
    except (FormulaParsingError, FormulaSyntaxError, RecursionError) as error:
        problem = str(error).partition("\n")[0] or type(error).__name__
        raise ConfigError(field="formula", value=formula, remedy=f"it cannot be read: {problem}") from error


def _tree(formula: str) -> object:
    for token in tokenize(formula):
        if token.kind is Token.Kind.PYTHON:
            raise _refused(token, "only fields and operators are allowed; nothing is computed")
    return DefaultFormulaParser().get_ast(formula)


@dataclass(frozen=True)
class _TreeReader:
    """Turns a tree into terms, without recursion: a sum of a thousand fields is a tree a thousand deep."""

    formula: str
    fields: Sequence[str]

    def statement(self, tree: object) -> ParsedFormula:
        if not (isinstance(tree, ASTNode) and tree.operator.symbol == "~" and len(tree.args) == 2):
            raise _refused(self.formula, "write the response, ~ and the terms: response ~ first + second")
        response, right = tree.args
        name = _text(response)
        if name not in self.fields:
            raise _refused(name or self.formula, f"the response is one of the fields: {', '.join(self.fields)}")
        group = self._group(right, response=name)
        terms = sorted((term for term in group if term), key=len)
        return ParsedFormula(
            response=name,
            terms=tuple(tuple(sorted(term, key=self.fields.index)) for term in terms),
            intercept=_INTERCEPT in group,
        )

    def _group(self, tree: object, *, response: str) -> TermSet:
        """The tree's terms, by a walk that meets the arguments of a node before the node."""
        waiting: list[tuple[object, bool]] = [(tree, False)]
        done: list[TermSet] = []
        while waiting:
            node, ready = waiting.pop()
            if not isinstance(node, ASTNode):
                done.append(self._leaf(node))
                continue
            arguments = _arguments(node)
            if not ready:
                waiting.append((node, True))
                waiting.extend((argument, False) for argument in reversed(arguments))
            elif node.operator.symbol == ".":
                done.append({frozenset([name]): None for name in self.fields if name != response})
            else:
                first = len(done) - len(arguments)
                done[first:] = [_combined(node, done[first:])]
        return done[0]

    def _leaf(self, leaf: object) -> TermSet:
        text = _text(leaf)
        if text == "1":
            return {_INTERCEPT: None}
        if text in self.fields:
            return {frozenset([text]): None}
        raise _refused(leaf, f"it is no field; the fields are {', '.join(self.fields)}")


def _text(leaf: object) -> str:
    return str(leaf.token) if isinstance(leaf, Token) else ""


def _arguments(node: Any) -> list[object]:
    """What a node combines; of a power only the base, once."""
    arguments = list(node.args)
    if node.operator.symbol in ("**", "^"):
        base, power = arguments
        if _text(power) != "2":
            raise _refused(power, "** and ^ take a 2 on their right: all crosses of two")
        return [base]
    return arguments


def _combined(node: Any, groups: Sequence[TermSet]) -> TermSet:
    symbol = str(node.operator.symbol)
    first, last = groups[0], groups[-1]  # one and the same where there is one
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
