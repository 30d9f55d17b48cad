"""Parsing of clients' grammars: the number of rules, and a bounded time for every text."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.errors import GrammarError
from ebbtide.server.structured.gbnf import MAX_RULES, lark_of_ebnf

ROOT = Path(__file__).parents[3]


def gbnf(count: int, line: str = 'r{i} ::= "::= :" r{next} | [":=] # a ::= b') -> str:
    lines = [line.format(i=i, next=i + 1) for i in range(count - 2)]
    return "\n".join(["root ::= r0", *lines, f'r{count - 2} ::= "a"'])


def lark(count: int) -> str:
    lines = [f'r{i}: ":" r{i + 1} | /:\\/:/ // a: b' for i in range(count - 2)]
    return "\n".join(["start: r0", *lines, f'r{count - 2}: "a"'])


@pytest.mark.parametrize("make", [gbnf, lark])
def test_rules_are_counted_and_nothing_else(make: Callable[[int], str]) -> None:
    assert lark_of_ebnf(make(MAX_RULES))
    with pytest.raises(GrammarError, match="at most 500 rules"):
        lark_of_ebnf(make(MAX_RULES + 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        'gbnf(8000, "r{i} ::= r{next}")',
        'gbnf(3000, \'r{i} ::= "a" r{next} | "b"\')',
        'gbnf(500, "r{i} ::= " + \'"a" \' * 110 + "r{next}")',
        '"root ::= " + "\\n" * 200_000',
        "'[' * 250_000",
        "'\"' * 250_001",
        "'start: ' + '/' * 250_001",
    ],
)
def test_no_text_takes_quadratic_time(text: str) -> None:
    """Regression: each of these texts took many seconds, or minutes, in which all threads were blocked."""
    code = f"""
import resource
from ebbtide.server.structured.gbnf import lark_of_ebnf
from ebbtide.errors import GrammarError
from tests.server.structured.test_gbnf import gbnf
text = {text}
used = resource.getrusage(resource.RUSAGE_SELF).ru_utime
resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 5, int(used) + 5))
try:
    lark_of_ebnf(text)
except GrammarError:
    pass
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_rules_in_any_order_with_circles_are_read() -> None:
    text = lark_of_ebnf('b ::= "b" c | "x"\nroot ::= a b\na ::= [0-9]\nc ::= b | "c"')
    assert {line.partition(":")[0] for line in text.splitlines() if ":" in line} == {"start", "A", "b", "c"}
