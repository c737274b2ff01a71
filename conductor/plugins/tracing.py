"""Turns as OpenTelemetry traces (extra ``otel``): a span a turn; below it model requests, tools, questions.

The spans of a turn are made when it has ended. Names and attributes follow the semantic conventions for
generative AI, v0.1.0 of their separate repository.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import unquote

from conductor.clock import epoch_ns
from conductor.errors import ErrorCode, SettingsError
from conductor.events.server import EndReason
from conductor.models.base import Finished
from conductor.observers.turns import TurnObservers, TurnStats
from conductor.server.listener import Listener
from conductor.settings import Settings, environment_values
from conductor.stores.base import SessionKey
from conductor.tools.redaction import without_scheme

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.util.types import AttributeValue

# Seconds that the last traces may take when the server stops.
CLOSE_S = 3.0
# Providers with another name in the conventions.
_PROVIDERS = {"bedrock": "aws.bedrock"}


def serve(listener: Listener, settings: Settings) -> AbstractAsyncContextManager[None]:
    """Trace turns, if OTEL_EXPORTER_OTLP_ENDPOINT is set. Raises `SettingsError` without the extra."""
    listener.redact(header_secrets(environment_values()), settings)
    observers = listener.services.observers
    if settings.otel_exporter_otlp_endpoint is not None and isinstance(observers, TurnObservers):
        observers.tracer = make_tracer(settings.otel_exporter_otlp_endpoint, content=settings.log_content)
    return nullcontext()


def header_secrets(variables: Mapping[str, str]) -> list[str]:
    """List the values of the headers in ``OTEL_…_HEADERS``, which are quoted as in a URL."""
    texts = [text for name, text in variables.items() if re.fullmatch("OTEL_.*_HEADERS", name)]
    pairs = [pair for text in texts for pair in text.split(",")]
    return [without_scheme(unquote(pair.partition("=")[2])) for pair in pairs]


class TurnTracer:
    """Makes the spans of turns with ``provider``; ``content``: with transcripts and replies."""

    def __init__(self, provider: TracerProvider, *, content: bool = False) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._content = content
        self._tracer = provider.get_tracer("conductor")
        self._propagator = TraceContextTextMapPropagator()

    def end_turn(
        self,
        turn_id: str,
        cause: str,
        *,
        stats: TurnStats,
        prompt: tuple[str, str],
        reason: EndReason,
        error: ErrorCode | None,
        key: SessionKey,
        traceparent: str | None,
    ) -> None:
        """Make the spans of a turn that has ended, below the app's span if ``traceparent`` names one.

        ``prompt`` is the name and the version of the system prompt.
        """
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        parent = self._propagator.extract({"traceparent": traceparent}) if traceparent else None
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "conductor",
            "gen_ai.conversation.id": key.session_id,
            "conductor.turn.id": turn_id,
            "conductor.turn.cause": cause,
            "conductor.turn.end": reason,
        }
        if self._content:
            attributes["gen_ai.input.messages"] = _message("user", stats.transcript)
            attributes["gen_ai.output.messages"] = _message("assistant", stats.reply)
        end_ns = epoch_ns()
        start_ns = end_ns - round((time.monotonic() - stats.started) * 1e9)
        root = self._tracer.start_span(
            "invoke_agent conductor", parent, SpanKind.SERVER, attributes, start_time=start_ns
        )
        if error is not None:
            root.set_attribute("error.type", error)
            root.set_status(Status(StatusCode.ERROR))
        if not root.is_recording():
            return  # not sampled; neither are its steps
        context = set_span_in_context(root)
        for step in stats.steps:
            kind = SpanKind.CLIENT if step.kind == "chat" else SpanKind.INTERNAL
            names: dict[str, str] = {} if step.kind == "approval" else {"gen_ai.operation.name": step.kind}
            if step.kind == "chat":
                names["gen_ai.prompt.name"], names["gen_ai.prompt.version"] = prompt
            span = self._tracer.start_span(
                f"{step.kind} {step.name}",
                context,
                kind,
                {**names, **step.attributes},
                start_time=step.start_ns,
            )
            if step.error:
                span.set_attribute("error.type", step.error)
                span.set_status(Status(StatusCode.ERROR))
            span.end(step.end_ns)
        root.end(end_ns)

    def describe_request(
        self, provider: str, finished: Finished | None
    ) -> tuple[str, Mapping[str, AttributeValue]]:
        """Return the model's name and the attributes of its request; ``provider`` is the default one."""
        if finished is None:
            return provider, {"gen_ai.provider.name": _PROVIDERS.get(provider, provider)}
        provider, usage = finished.provider or provider, finished.usage
        model = finished.model or finished.profile or provider
        return model, {
            "gen_ai.provider.name": _PROVIDERS.get(provider, provider),
            "gen_ai.request.model": model,
            "gen_ai.request.stream": True,
            # The conventions count cached tokens as input, too.
            "gen_ai.usage.input_tokens": usage.read_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cache_read_tokens,
            "gen_ai.usage.cache_write.input_tokens": usage.cache_write_tokens,
            "gen_ai.response.finish_reasons": [finished.stop],
            "conductor.model.profile": finished.profile or "",
        }

    def close(self, seconds: float = CLOSE_S) -> None:
        """Send the remaining traces, and stop. Blocks for ``seconds`` at most; unsent traces are lost."""
        # The package waits up to 30 s for a collector that does not answer.
        closing = Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(seconds)


def make_tracer(endpoint: str, *, content: bool) -> TurnTracer:
    """Make the tracer that sends to ``endpoint`` by OTLP over HTTP.

    The package reads the other variables ``OTEL_*`` by itself. Raises `SettingsError` without the extra.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise SettingsError(
            "OTEL_EXPORTER_OTLP_ENDPOINT needs the extra otel: pip install 'conductor-voice[otel]'."
        ) from None
    resource = Resource.create({SERVICE_NAME: "conductor"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return TurnTracer(provider, content=content)


def _message(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}], ensure_ascii=False)
