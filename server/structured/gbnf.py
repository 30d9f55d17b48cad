"""Grammars as clients write them, in GBNF or llguidance's Lark, made into Lark. Compiles nothing.

It runs in a compiling thread: a large grammar takes about a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from llguidance.gbnf_to_lark import ASTNode, GrammarParser, RuleNode, RuleRefNode, resolve

from ebbtide.errors import GrammarError

MAX_MESSAGE = 300
MAX_RULES = 500  # the compiler follows a chain of them by recursion
# What a client's grammar cannot have: options, and the notations that are checked where they are fields of their own.
DIRECTIVES = ("%llguidance", "%json", "%regex", "%lark")
# No pattern here goes back over a text: they hold up all threads.
IS_LARK = re.compile(r"^[^\S\n]*start\s*:", re.MULTILINE)
# What ends a rule's name; texts, expressions, character classes and comments are passed over.
LARK_RULE = re.compile(r'"(?:[^"\\\n]|\\.)*"?|//[^\n]*|/(?:[^/\\\n]|\\.)*/?|#[^\n]*|(?P<rule>:)')
GBNF_RULE = re.compile(r'"(?:[^"\\]|\\.)*"?|\[(?:[^\]\\]|\\.)*\]?|#[^\n]*|(?P<rule>::=)', re.DOTALL)


def lark_of_ebnf(text: str) -> str:
    """A grammar in Lark from one in Lark or in GBNF. Raises GrammarError for what is neither, or has too many rules."""
    for word in DIRECTIVES:
        if word in text:
            raise GrammarError(f"{word} is not supported in a grammar.")
    lark = IS_LARK.search(text) is not None
    if sum(1 for found in (LARK_RULE if lark else GBNF_RULE).finditer(text) if found["rule"]) > MAX_RULES:
        raise GrammarError(f"a grammar has at most {MAX_RULES} rules.")
    return text if lark else _lark_of_gbnf(text)


def _lark_of_gbnf(text: str) -> str:
    try:
        rules = _inner_first(GrammarParser().parse(text))
        resolve(rules)
        return "\n".join(map(str, rules.values()))
    except RecursionError as error:
        raise GrammarError("The grammar is nested too deeply.") from error
    except Exception as error:  # the converter raises nothing more particular
        raise GrammarError(str(error).partition("\n")[0][:MAX_MESSAGE]) from error


def _inner_first(rules: dict[str, RuleNode]) -> dict[str, RuleNode]:
    """The rules, each behind those that it uses: else ``resolve`` takes a time that grows with the square."""
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
    """The names in a rule."""
    waiting: list[ASTNode] = [rule]
    while waiting:
        node = waiting.pop()
        if isinstance(node, RuleRefNode):
            yield node.name
        waiting += node.children()
