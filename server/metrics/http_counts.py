"""Counts HTTP requests by endpoint, method and status.

Endpoints are route templates, so clients cannot create new label values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .help_texts import help_text

OTHER = "other"  # label value for unknown paths and methods
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpCounts:
    """Counts received and open requests, and responses by status."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, ...]] = Counter()
        self._active: Counter[tuple[str, ...]] = Counter()
        self._responses: Counter[tuple[str, ...]] = Counter()

    def add_endpoint(self, endpoint: str, method: str) -> None:
        """Export an endpoint with zero counts, so that its first request is visible as an increase."""
        self._requests[endpoint, method] += 0
        self._active[endpoint, method] += 0

    def on_request(self, endpoint: str, method: str) -> None:
        """Count a received request."""
        self._requests[endpoint, method] += 1
        self._active[endpoint, method] += 1

    def on_response(self, endpoint: str, status: int, method: str) -> None:
        """Count a started response."""
        self._responses[endpoint, str(status), method] += 1

    def on_request_end(self, endpoint: str, method: str) -> None:
        """Record that a request is no longer open, whether it was answered or not."""
        self._active[endpoint, method] -= 1

    def families(self, prefix: str, labels: Mapping[str, str]) -> Iterator[Metric]:
        """Yield the three series under ``prefix``, each sample with ``labels`` added."""
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        yield _family(gauge, prefix, "http_requests_active", labels, ("endpoint", "method"), self._active)
        yield _family(counter, prefix, "http_requests_total", labels, ("endpoint", "method"), self._requests)
        names = ("endpoint", "status_code", "method")
        yield _family(counter, prefix, "http_responses_total", labels, names, self._responses)


class CountRequests:
    """Middleware that counts requests.

    routes: the routes whose path templates are the endpoints.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute], counts: HttpCounts) -> None:
        self._app = app
        known = [route for route in routes if isinstance(route, Route)]
        self._fixed = {route.path for route in known if "{" not in route.path}
        self._patterns = [route for route in known if "{" in route.path]
        self._counts = counts
        for route in known:
            for method in METHODS.intersection(route.methods or ()):
                counts.add_endpoint(route.path, method)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"] if scope["method"] in METHODS else OTHER
        endpoint = self._endpoint(scope)

        async def send_and_count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._counts.on_response(endpoint, message["status"], method)
            await send(message)

        self._counts.on_request(endpoint, method)
        try:
            await self._app(scope, receive, send_and_count)
        finally:
            self._counts.on_request_end(endpoint, method)

    def _endpoint(self, scope: Scope) -> str:
        """Return the endpoint of a path, even if its route does not allow the method (405)."""
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        for fixed in (path, scope["path"]):
            if fixed in self._fixed:
                return fixed
        for route in self._patterns:
            if route.matches(scope)[0] is not Match.NONE:
                return route.path
        return OTHER


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    prefix: str,
    name: str,
    fixed: Mapping[str, str],
    varied: Sequence[str],
    counts: Mapping[tuple[str, ...], int],
) -> Metric:
    family = kind(prefix + name, help_text(name), labels=[*fixed, *varied])
    for values, count in list(counts.items()):
        family.add_metric([*fixed.values(), *values], count)
    return family
