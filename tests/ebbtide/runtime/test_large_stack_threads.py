"""The deepest native recursion that a client's grammar can cause, in another process, which a failure would end."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ebbtide.runtime.large_stack_threads import large_stack_pool

ROOT = Path(__file__).parents[3]
SETTING = r"""
import asyncio, json, threading
from ebbtide.messages import UseVocabulary
from ebbtide.scheduler.grammar.grammar_compiler import GrammarCompilerThread
from ebbtide.server.structured.constraints import ebnf_constraint, schema_constraint
from ebbtide.server.structured.structured import StructuredOutput
from ebbtide.tokenization.vocabulary import SIM_VOCAB_SIZE, sim_vocabulary
from tests.server.conftest import INFO

def circle(count, definition):
    defs = {f"d{i}": definition({"$ref": f"#/$defs/d{(i + 1) % count}"}) for i in range(count)}
    return schema_constraint({"$defs": defs, "$ref": "#/$defs/d0"}, "s")

def rules(line, count, last):
    lines = [line.format(i=i, next=i + 1) for i in range(count)]
    return ebnf_constraint("\n".join([*lines, last.format(i=count)]), "s")

async def front(constraint):
    structured = StructuredOutput(sim_vocabulary(), INFO, 60)
    try:
        return await structured.compile(constraint)
    finally:
        structured.close()

grammar = asyncio.run(front(CONSTRAINT))
vocabulary = sim_vocabulary()
compiler = GrammarCompilerThread(SIM_VOCAB_SIZE, ())
compiler.set_vocabulary(UseVocabulary(vocabulary.pieces, vocabulary.special_ids, vocabulary.eos_ids))
while compiler.poll(grammar) is None:
    threading.Event().wait(0.01)
matcher = compiler.poll(grammar).matcher.copy()
for token in b'TEXT':
    matcher.advance(token)
compiler.close()
print("alive")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        ('circle(3900, lambda r: {"type": "array", "items": r})', "[[[["),
        ('circle(2400, lambda r: {"type": "array", "prefixItems": [r, r]})', "[[[["),
        ('circle(1600, lambda r: {"anyOf": [{"anyOf": [{"type": "array", "items": r}]}, {"type": "null"}]})', "[[[["),
        ('circle(3300, lambda r: {"type": "object", "additionalProperties": r})', '{"a":{'),
        ("rules('r{i} ::= r{next}', 498, 'r{i} ::= \"a\"\\nroot ::= r0')", "a"),
        ("rules('r{i}: r{next}', 498, 'r{i}: \"a\"\\nstart: r0')", "a"),
        ('rules(\'R{i}: "b" R{next} | "c"\', 498, \'R{i}: "a"\\nstart: R0\')', "bbb"),
    ],
)
def test_the_deepest_accepted_grammar_compiles_in_both_processes(constraint: str, text: str) -> None:
    code = SETTING.replace("CONSTRAINT", constraint).replace("TEXT", text)
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "alive\n"), ran.stderr[-2000:]


def test_other_threads_keep_their_stack() -> None:
    before = threading.stack_size()
    pool = large_stack_pool(2, "deep")
    try:
        assert threading.stack_size() == before
        assert pool.submit(lambda: threading.current_thread().name).result(20).startswith("deep")
    finally:
        pool.shutdown()
