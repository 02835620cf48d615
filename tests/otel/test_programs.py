"""Whole programs: workers in processes of their own, and engines without traces."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.pages import printed

PROCESSES = """
import os, sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
import shardq

out = open(sys.argv[1], "a")
provider = TracerProvider()
exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\\n")
provider.add_span_processor(SimpleSpanProcessor(exporter))
engine = shardq.Engine(name=sys.argv[2], shards=2)
shardq.otel.instrument(engine, tracer_provider=provider)
worker = engine.worker(processes=2)

@worker.on("mail")
def send(delivery):
    if delivery.payload == "last":
        os.kill(os.getppid(), 15)

engine.start()
engine.push("last", topic="mail")
worker.run()
engine.close()
"""

PLAIN = """
import sys, shardq
with shardq.Engine(name=sys.argv[1], shards=2) as engine:
    engine.start()
    engine.push("x")
    engine.consumer().claim(1, wait=30)
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""

MISSING = """
import sys
sys.modules["opentelemetry"] = None
import shardq
try:
    shardq.otel.instrument
except ImportError as exc:
    print(exc)
"""


def test_handlers_in_processes_of_their_own(url: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "spans"
    printed(PROCESSES, url, str(file), name)
    push, process = (json.loads(line) for line in file.read_text().splitlines())
    assert (push["name"], process["name"]) == ("push mail", "process mail")
    assert process["context"]["trace_id"] == push["context"]["trace_id"]
    assert process["parent_id"] == push["context"]["span_id"]


def test_an_engine_without_traces_loads_nothing_of_them(url: str, name: str) -> None:
    assert printed(PLAIN, url, name) == "[]\n"


def test_without_the_package_the_error_names_it(url: str) -> None:
    assert printed(MISSING, url) == "shardq.otel needs opentelemetry-api: pip install 'shardq[otel]'\n"
