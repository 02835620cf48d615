"""OpenTelemetry: one trace from a push over its dispatch to its handler, in the headers of the task.

    >>> engine = shardq.Engine()
    >>> shardq.otel.instrument(engine)

It needs opentelemetry-api: ``pip install 'shardq[otel]'``. ``README.md`` beside this file says which spans there are.
"""

from shardq.errors import MissingPackage

try:
    import opentelemetry.trace  # noqa: F401
except ModuleNotFoundError as exc:
    if (exc.name or "").partition(".")[0] != "opentelemetry":
        raise
    raise MissingPackage("shardq.otel needs opentelemetry-api: pip install 'shardq[otel]'") from exc

from shardq.otel.instrument import Instrumentation, Traces, instrument

__all__ = ["Instrumentation", "Traces", "instrument"]
