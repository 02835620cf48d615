"""Engines of both kinds that are traced, and the spans that ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cluster.server import Server
from shardq import Engine
from shardq.otel import Instrumentation, Traces, instrument
from tests.support.waiting import wait_until


class Spans:
    """The spans of one test."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        """Those that have ended, in the order of their ends."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def ended(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """Waits until so many have ended."""
        wait_until(lambda: len(self.named(name)) >= count, f"{count} spans {name!r} have ended")
        return self.named(name)


Trace = Callable[..., Instrumentation]


@pytest.fixture(scope="session")
def url(single: Server) -> str:
    """Traces are made in this process: one kind of server will do."""
    return single.url


@pytest.fixture
def spans() -> Iterator[Spans]:
    spans = Spans()
    yield spans
    spans.provider.shutdown()


@pytest.fixture
def traced(spans: Spans) -> Trace:
    """Traces an engine of either kind."""

    def trace(engine: Engine, traces: Traces = "one") -> Instrumentation:
        return instrument(getattr(engine, "_target", engine), tracer_provider=spans.provider, traces=traces)

    return trace
