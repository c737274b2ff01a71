"""Traces of turns, by the SDK's in-memory exporter and by a receiver of OTLP."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from conductor.errors import ModelError
from conductor.events import client
from conductor.models.base import Finished, TextDelta, Usage
from conductor.observers.turns import TurnObservers, TurnStats
from conductor.plugins.tracing import TurnTracer, make_tracer
from tests.models import Script
from tests.session.helpers import KEY, LocalTools, call, make_services, open_stage, run

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def spans_of(
    scripts: Sequence[Script],
    *,
    content: bool = False,
    traceparent: str | None = None,
    interrupt: bool = False,
) -> list[ReadableSpan]:
    """Say "hello" once, and return the spans of the turn."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def scenario() -> None:
        services = make_services(scripts, toolsets=[LocalTools()])
        observers = TurnObservers(tracer=TurnTracer(provider, content=content))
        observers.prompt = ("voice", "v1")
        stage = await open_stage(replace(services, observers=observers))
        await stage.session.clients.start(
            client.SessionStart(traceparent=traceparent), stage.app.line, resumed=True
        )
        stage.app.say("hello")
        if interrupt:
            await stage.app.until("assistant.speech.partial")
            stage.app.interrupt()
        await stage.quiet()

    run(scenario())
    return sorted(exporter.get_finished_spans(), key=lambda span: span.name)


def test_a_turn_is_a_span_and_its_requests_and_tools_are_spans_below_it() -> None:
    scripts: list[Script] = [
        [
            call("local.sum", '{"x": 1}'),
            Finished("tool_use", Usage(10, 5, 3, 2), profile="home", provider="bedrock", model="nova"),
        ],
        [TextDelta("Done.")],
    ]
    first, second, tool, turn = spans_of(scripts)
    assert [span.name for span in (first, second, tool, turn)] == [
        *("chat nova", "chat scripted", "execute_tool local.sum", "invoke_agent conductor")
    ]
    assert turn.context is not None and turn.parent is None
    assert all(
        span.parent is not None and span.parent.span_id == turn.context.span_id for span in (first, tool)
    )
    assert (first.kind, tool.kind, turn.kind) == (SpanKind.CLIENT, SpanKind.INTERNAL, SpanKind.SERVER)
    assert first.attributes is not None and tool.attributes is not None and turn.attributes is not None
    assert first.attributes["gen_ai.usage.input_tokens"] == 15
    assert first.attributes["gen_ai.usage.cache_read.input_tokens"] == 3
    assert first.attributes["gen_ai.usage.cache_write.input_tokens"] == 2
    assert 0 <= float(str(first.attributes["gen_ai.response.time_to_first_chunk"])) < 5
    prompts = ("gen_ai.prompt.name", "gen_ai.prompt.version")
    assert [first.attributes[name] for name in prompts] == ["voice", "v1"]
    assert first.attributes["gen_ai.provider.name"] == "aws.bedrock"
    assert first.attributes["gen_ai.request.model"] == "nova"
    assert tool.attributes["gen_ai.tool.name"] == "local.sum"
    assert turn.attributes["gen_ai.conversation.id"] == KEY.session_id
    assert turn.attributes["conductor.turn.end"] == "answered"
    for span in (first, second, tool):
        assert turn.start_time is not None and turn.end_time is not None
        assert span.start_time is not None and span.end_time is not None
        assert span.start_time <= span.end_time <= turn.end_time


def test_traces_have_no_content_by_default() -> None:
    scripts: list[Script] = [[call("local.sum", '{"x": 717171717171}')], [TextDelta("Secret answer.")]]
    spans_json = "".join(span.to_json() for span in spans_of(scripts))
    assert "hello" not in spans_json and "Secret" not in spans_json and "717171717171" not in spans_json
    turn = spans_of(scripts, content=True)[-1]
    assert turn.attributes is not None
    (message,) = json.loads(str(turn.attributes["gen_ai.output.messages"]))
    assert message["parts"] == [{"type": "text", "content": "Secret answer."}]


def test_a_failed_turn_is_an_error_with_its_code() -> None:
    chat, turn = spans_of([[ModelError("refused", "no")]])
    assert (chat.status.status_code, turn.status.status_code) == (StatusCode.ERROR, StatusCode.ERROR)
    assert chat.attributes is not None and chat.attributes["error.type"] == "refused"
    assert turn.attributes is not None and turn.attributes["error.type"] == "model_provider_failed"


def test_an_interruption_is_no_error() -> None:
    chat, turn = spans_of([[TextDelta("Once "), asyncio.Event()]], interrupt=True)
    assert (chat.status.status_code, turn.status.status_code) == (StatusCode.UNSET, StatusCode.UNSET)
    assert turn.attributes is not None and turn.attributes["conductor.turn.end"] == "interrupted"


@pytest.mark.parametrize("traceparent", [PARENT, "nonsense", None])
def test_turns_are_part_of_the_apps_trace(traceparent: str | None) -> None:
    *_, turn = spans_of([[TextDelta("Hello.")]], traceparent=traceparent)
    assert turn.context is not None
    assert (f"{turn.context.trace_id:032x}" == TRACE) == (traceparent == PARENT)


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Run a receiver of OTLP over HTTP; returns its address and its requests."""
    received: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()
        thread.join()


def end_turn(tracer: TurnTracer) -> None:
    tracer.end_turn(
        "turn_1",
        "transcript",
        stats=TurnStats(),
        prompt=("", ""),
        reason="answered",
        error=None,
        key=KEY,
        traceparent=None,
    )


def test_traces_are_sent_to_a_collector() -> None:
    with collector() as (url, received):
        tracer = make_tracer(url, content=False)
        end_turn(tracer)
        tracer.close()
    (body,) = received
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    names = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert names["service.name"] == "conductor"
    assert [span.name for span in resource.scope_spans[0].spans] == ["invoke_agent conductor"]


def test_an_unresponsive_collector_does_not_delay_the_stop() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracer = make_tracer(f"http://127.0.0.1:{silent.getsockname()[1]}", content=False)
        end_turn(tracer)
        tracer.close(0.05)
        assert any(thread.name == "traces" for thread in enumerate_threads())


@pytest.mark.parametrize(("share", "turns"), [("1", 1), ("0", 0)])
def test_the_sampler_of_the_environment_is_used(
    share: str, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", share)
    assert len(spans_of([[TextDelta("Hello.")]], traceparent=PARENT)) == 2 * turns
