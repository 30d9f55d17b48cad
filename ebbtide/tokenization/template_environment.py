"""The jinja environment for chat templates: jinja's sandbox, in which every operation counts against ``RenderLimits``.

jinja's own sandbox limits neither time nor memory. This module contains the hooks into jinja; template_limits.py
computes the sizes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes, pass_context, pass_environment
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from .template_limits import RenderLimits, filtered_size, format_size, method_size, power_size, product_size

# Functions that write random or alternating text. No chat template uses them.
WITHOUT_FUNCTIONS = ("lipsum", "cycler", "joiner")
# Filters that read only the outermost list, or return its entries unchanged.
SHALLOW = frozenset(
    ("length", "count", "first", "last", "list", "map", "select", "reject", "selectattr", "rejectattr", "default")
) | {"d", "items", "attr", "random", "safe"}


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and renders chat templates within limits. Thread-safe."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols], finalize=_written
        )
        self._thread = threading.local()
        self.filters["tojson"] = _to_json
        self.filters = {name: self._bounded(name, function) for name, function in self.filters.items()}
        for name in WITHOUT_FUNCTIONS:
            del self.globals[name]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _Dict(),
            "namespace": _Namespace,
        }

    @property
    def limits(self) -> RenderLimits:
        """The limits of the rendering that runs in this thread."""
        limits: RenderLimits = self._thread.limits
        return limits

    @contextmanager
    def limited(self, limits: RenderLimits) -> Iterator[None]:
        """Apply ``limits`` to compilation and rendering in this thread during the block."""
        self._thread.limits = limits
        try:
            yield
        finally:
            del self._thread.limits

    def counted(self, values: Iterable[Any]) -> Iterator[Any]:
        """Yield the values, and count one step for each."""
        limits = self.limits
        for value in values:
            limits.step()
            yield value

    def held(self, value: Any) -> Any:
        """Return a list, tuple or dict that the template has just created, after checking its size."""
        self.limits.check_held(value)
        return value

    def joined(self, *values: Any) -> str:
        """Implement the operator ``~``: return the values as strings, joined."""
        self.limits.step()
        for value in values:
            self.limits.check_held(value)
        return self.concat(map(str, values))

    def concat(self, pieces: Iterable[str]) -> str:
        """Join the strings that a template, macro or block has written."""
        pieces = list(pieces)
        self.limits.check_text(sum(map(len, pieces)))
        return "".join(pieces)

    def measured(self, pieces: Iterable[str]) -> Iterator[str]:
        """Yield the pieces of a text. Raises TemplateLimitError when their total length exceeds the limit."""
        size = 0
        for piece in pieces:
            size += len(piece)
            self.limits.check_text(size)
            yield piece

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a binary operator that is in ``intercepted_binops``, after checking the size of its result."""
        limits = self.limits
        limits.step()
        if operator == "+":
            _check_sum(limits, left, right)
        elif operator == "*":
            limits.check_text(product_size(left, right, limits.text))
        elif operator == "**":
            limits.check_text(power_size(left, right, limits.text))
        elif isinstance(left, str):
            limits.check_text(format_size(left, "%", right, limits.text))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, a method or a macro, after checking the sizes of its arguments and its result."""
        limits = self.limits
        limits.step()
        if not isinstance(function, Macro | LoopContext):
            for value in (*args, *kwargs.values()):
                limits.check_held(value)
            method = getattr(function, "__wrapped__", function)
            owner = getattr(method, "__self__", None)
            if isinstance(owner, str | bytes | int):
                if method.__name__ == "join" and args:
                    args = (list(args[0]), *args[1:])
                size = method_size(owner, method.__name__, [*args, *kwargs.values()], limits.text)
                limits.check_text(size)
        return super().call(context, function, *args, **kwargs)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _CountedNodes().visit(super()._parse(source, name, filename))
        return tree

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter that does the same as ``function``, and checks the sizes of its arguments and its result."""
        # If this attribute is set, jinja passes the context, or a part of it, as the first argument.
        num_passed = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            values = list(args[num_passed:])
            if name == "join" and values:
                values[0] = list(values[0])
            self._check_filter(name, [*values, *kwargs.values()])
            result = function(*args[:num_passed], *values, **kwargs)
            self.limits.check_text(len(result) if isinstance(result, str) else 0)
            return result

        return bounded

    def _check_filter(self, name: str, values: list[Any]) -> None:
        limits = self.limits
        limits.step()
        for value in values if name not in SHALLOW else values[1:]:
            limits.check_held(value)
        limits.check_text(filtered_size(name, values, limits.text))


class _CountedNodes(NodeTransformer):
    """Changes a template so that loops, ``~`` and the creation of lists and dicts call the environment."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _through("counted", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _through("joined", *node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return node if all(isinstance(item, nodes.Const) for item in node.items) else _through("held", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return node if all(isinstance(item.value, nodes.Const) for item in node.items) else _through("held", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        is_small = all(isinstance(item, nodes.Const) for item in node.items)
        return node if is_small or node.ctx != "load" else _through("held", node)


def _through(name: str, *values: nodes.Node) -> nodes.Node:
    call = nodes.Call(nodes.EnvironmentAttribute(name), list(values), [], None, None)
    return call.set_lineno(values[0].lineno)


def _check_sum(limits: RenderLimits, left: Any, right: Any) -> None:
    if isinstance(left, str) and isinstance(right, str):
        limits.check_text(len(left) + len(right))
    elif isinstance(left, list | tuple):
        limits.check_held((left, right))


@pass_context
def _written(context: Context, value: Any) -> Any:
    """Count a value that the template writes. jinja calls this function for the value of each output expression."""
    limits = context.environment.limits  # type: ignore[attr-defined]
    limits.write(value)
    return value


class _GenerationBlocks(Extension):
    """``{% generation %}`` marks the assistant's answers for training. The text in the block is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012 - as jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("text_of"), [], [], body).set_lineno(line)

    def text_of(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """The ``dict`` of templates. An instance replaces the class, whose attributes would lead out of the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(jinja2.utils.Namespace):
    """The ``namespace`` of templates. It refuses names that start with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *given = args
        values = dict(*given, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a chat template cannot store the attribute {name!r} in a namespace")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


@pass_environment
def _to_json(
    environment: BoundedEnvironment,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The ``tojson`` filter of templates. Unlike jinja's own filter, it does not escape HTML characters."""
    if indent is None:
        return json.dumps(value, ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys)
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return environment.concat(environment.measured(encoder.iterencode(value)))
