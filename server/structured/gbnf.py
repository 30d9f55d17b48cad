"""Converts GBNF grammars to Lark, and checks Lark grammars of clients. The module does not compile grammars.

The conversion runs in a compile thread, because a large grammar takes about a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from llguidance.gbnf_to_lark import ASTNode, GrammarParser, RuleNode, RuleRefNode, resolve

from ebbtide.errors import GrammarError

MAX_MESSAGE = 300
MAX_RULES = 500  # the compiler recurses along a chain of rules
# Options, and notations that have their own request fields: a client's grammar must not contain them.
DIRECTIVES = ("%llguidance", "%json", "%regex", "%lark")
# The patterns must not backtrack, because a regex match blocks all threads.
IS_LARK = re.compile(r"^[^\S\n]*start\s*:", re.MULTILINE)
# Each pattern finds the definition operators of rules, and skips strings, regexes, character classes and comments.
LARK_RULE = re.compile(r'"(?:[^"\\\n]|\\.)*"?|//[^\n]*|/(?:[^/\\\n]|\\.)*/?|#[^\n]*|(?P<rule>:)')
GBNF_RULE = re.compile(r'"(?:[^"\\]|\\.)*"?|\[(?:[^\]\\]|\\.)*\]?|#[^\n]*|(?P<rule>::=)', re.DOTALL)


def lark_of_ebnf(text: str) -> str:
    """Return a grammar in Lark, converted if ``text`` is a GBNF grammar.

    Raises GrammarError if the text has an unsupported directive or too many rules, or is neither Lark nor valid GBNF.
    """
    for word in DIRECTIVES:
        if word in text:
            raise GrammarError(f"{word} is not supported in a grammar.")
    lark = IS_LARK.search(text) is not None
    if sum(1 for found in (LARK_RULE if lark else GBNF_RULE).finditer(text) if found["rule"]) > MAX_RULES:
        raise GrammarError(f"a grammar may have at most {MAX_RULES} rules.")
    return text if lark else _lark_of_gbnf(text)


def _lark_of_gbnf(text: str) -> str:
    try:
        rules = _inner_first(GrammarParser().parse(text))
        resolve(rules)
        return "\n".join(map(str, rules.values()))
    except RecursionError as error:
        raise GrammarError("The grammar is nested too deeply.") from error
    except Exception as error:  # the converter raises plain Exception
        raise GrammarError(str(error).partition("\n")[0][:MAX_MESSAGE]) from error


def _inner_first(rules: dict[str, RuleNode]) -> dict[str, RuleNode]:
    """Return the rules in an order in which each rule comes after the rules that it uses, as far as possible.

    In another order, ``resolve`` would take quadratic time.
    """
    ordered: dict[str, RuleNode] = {}
    seen: set[str] = set()
    for first in rules:
        path = [(first, _uses(rules[first]))]
        while path:
            name, rest = path[-1]
            inner = next((used for used in rest if used in rules and used not in seen), None)
            if inner is None:
                ordered[name] = rules[name]
                seen.add(name)
                path.pop()
            else:
                seen.add(inner)
                path.append((inner, _uses(rules[inner])))
    return ordered


def _uses(rule: RuleNode) -> Iterator[str]:
    """Yield the names of the rules that ``rule`` uses."""
    waiting: list[ASTNode] = [rule]
    while waiting:
        node = waiting.pop()
        if isinstance(node, RuleRefNode):
            yield node.name
        waiting += node.children()
