"""Compares the published schema with the server: on every route, requests that it allows and some that it forbids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from ..conftest import Daemon

# These routes control the whole server and have their own tests.
CONTROL = ("/flush_cache", "/pause_generation", "/continue_generation", "/abort_request")


def operations(daemon: Daemon, mode: GenerationMode) -> Iterator[APIOperation[Any, Any, Any, Any]]:
    """Yield the operations that affect no other requests; in negative mode only those with a body."""
    schema: Any = schemathesis.openapi.from_url(daemon.url + "/openapi.json")
    for result in schema.get_all_operations():
        operation: Any = result.ok()
        if operation.path not in CONTROL and (mode is GenerationMode.POSITIVE or operation.body):
            yield operation


def attack(operation: APIOperation[Any, Any, Any, Any], mode: GenerationMode, max_examples: int) -> None:
    """Send requests to one operation; the schema must declare each answer."""

    @settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        response = case.call(timeout=60)
        assert response.status_code < 500 or "timeout_error" in response.text, response.text[:500]  # it may ask for one
        if response.status_code >= 400:
            error = response.json()["error"]
            assert error["message"]
            assert error["type"]
        case.validate_response(response, checks=[status_code_conformance, content_type_conformance])

    run()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["allowed", "not allowed"])
def test_every_answer_matches_the_published_schema(target: Daemon, mode: GenerationMode) -> None:
    seen = 0
    for operation in operations(target, mode):
        attack(operation, mode, max_examples=3)
        seen += 1
    assert seen > 10
    assert "Traceback" not in target.log


@pytest.mark.soak
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["allowed", "not allowed"])
def test_every_answer_matches_the_published_schema_in_a_long_run(target: Daemon, mode: GenerationMode) -> None:
    for operation in operations(target, mode):
        attack(operation, mode, max_examples=400)
    assert "Traceback" not in target.log
