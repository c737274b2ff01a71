"""Errors of services in the shapes that they really have, as `ModelError`."""

from __future__ import annotations

import pytest

from conductor.errors import ModelError, ModelFailure
from conductor.models.failures import ToolsRefused, failure
from conductor.plugins.models.service_errors import (
    RequestRefused,
    SchemaRefused,
    ServiceProblem,
    from_event,
    from_status,
    read_problem,
    refused_tool,
)

# llama.cpp's are recorded; the others are as their projects document or write them.
ERRORS: list[tuple[int, bytes, ModelFailure]] = [
    # llama.cpp
    (
        400,
        b'{"error":{"code":400,"message":"request (10018 tokens) exceeds the available context size,'
        b' try increasing it","type":"exceed_context_size_error","n_prompt_tokens":10018,"n_ctx":2048}}',
        "context_too_long",
    ),
    (
        401,
        b'{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}',
        "authentication",
    ),
    (404, b'{"error":{"message":"File Not Found","type":"not_found_error","code":404}}', "protocol"),
    (503, b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}', "overloaded"),
    # OpenAI
    (
        400,
        b'{"error":{"message":"This model\'s maximum context length is 8192 tokens.",'
        b'"type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}',
        "context_too_long",
    ),
    (
        429,
        b'{"error":{"message":"Rate limit reached","type":"tokens","code":"rate_limit_exceeded"}}',
        "rate_limited",
    ),
    (
        429,
        b'{"error":{"message":"No quota left","type":"insufficient_quota","code":"insufficient_quota"}}',
        "authentication",
    ),
    (400, b'{"error":{"message":"Filtered","code":"content_filter"}}', "refused"),
    # vLLM before 0.10
    (
        400,
        b'{"object":"error","message":"This model\'s maximum context length is 4096 tokens.'
        b' However, you requested 5000","type":"BadRequestError","param":null,"code":400}',
        "context_too_long",
    ),
    # LM Studio
    (
        400,
        b'{"error":"Trying to keep the first 5000 tokens; the context length is 4096"}',
        "context_too_long",
    ),
    # by the status alone
    *((status, b"", "authentication") for status in (401, 402, 403)),
    (408, b"", "timeout"),
    (413, b"", "context_too_long"),
    (429, b"", "rate_limited"),
    *((status, b"", "overloaded") for status in (424, 500, 503, 529)),
    # Anthropic and Bedrock
    (400, b'{"error":{"message":"Prompt is too long: 5 > 4"}}', "context_too_long"),
    (400, b'{"message":"Input is too long for requested model."}', "context_too_long"),
    (400, b'{"message":"Number of input tokens exceeds maximum length."}', "context_too_long"),
    (400, b'{"error":{"message":"tokens exceed the context window"}}', "context_too_long"),
    (400, b'{"error":{"message":"The context window was exceeded."}}', "context_too_long"),
    # of a context, not of its size
    *(
        (400, f'{{"error":{{"message":"{message}"}}}}'.encode(), "protocol")
        for message in (
            "Unknown parameter: context window",
            "The context length option is not supported",
            "Invalid context",
            "context size must be a string",
        )
    ),
    # no known failure
    *((status, b"[]", "protocol") for status in (302, 400, 404, 422)),
    (400, b'{"error": {"message": 5}}', "protocol"),
    (400, b'{"detail":[{"loc":["body"],"msg":"field required"}]}', "protocol"),
    (400, b"<html>Bad Request</html>", "protocol"),
    (502, b"\xff", "overloaded"),
    (500, b"[" * 100_000, "overloaded"),
]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "gemma:2b does not support tools"),
        (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        (404, "No endpoints found that support tool use."),  # OpenRouter
        (500, "tools param requires --jinja flag"),
    ],
)
def test_a_model_without_tools_needs_the_text_protocol(status: int, message: str) -> None:
    error = from_status(status, ServiceProblem(message=message), {})
    assert isinstance(error, ToolsRefused) and 'kind = "text"' in str(error)


@pytest.mark.parametrize(("status", "body", "reason"), ERRORS)
def test_error_bodies(status: int, body: bytes, reason: ModelFailure) -> None:
    assert from_status(status, read_problem(body), {}).reason == reason


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (b'{"error":{"code":500,"message":"got exception","type":"server_error"}}', "overloaded"),
        (b'{"error":{"message":"The model runner stopped","type":"api_error","code":null}}', "overloaded"),
        (b'{"error":{"message":"Out of memory","type":"InternalServerError"}}', "overloaded"),
        (b'{"error":"the model runner has stopped"}', "overloaded"),
        (b'{"error":{"message":"Slow down","code":"rate_limit_exceeded"}}', "rate_limited"),
        (b'{"error":{"message":"exceeds the available context size","code":400}}', "context_too_long"),
        (b'{"error":{"type":"overloaded_error"}}', "overloaded"),
        (b'{"error":{"type":"rate_limit_error"}}', "rate_limited"),
        (b'{"error":{"type":"authentication_error"}}', "authentication"),
        (b'{"error":{"code":200,"type":"odd"}}', "protocol"),
        (b"[1]", "overloaded"),
    ],
)
def test_error_events(event: bytes, reason: ModelFailure) -> None:
    assert from_event(read_problem(event)).reason == reason


TOOLS = ["get", "get_weather", "mail_send", "lamp"]


@pytest.mark.parametrize(
    ("body", "tool"),
    [
        # Anthropic, OpenAI's two endpoints, Gemini's two kinds of message, Bedrock, a gateway
        (b'{"error":{"message":"tools.2.custom.input_schema: JSON schema is invalid"}}', "mail_send"),
        (
            b'{"error":{"message":"Invalid schema for function \'get_weather\': In context=(), ...",'
            b'"param":"tools[1].function.parameters","code":"invalid_function_parameters"}}',
            "get_weather",
        ),
        (b'{"error":{"message":"Invalid schema.","param":"tools[3].parameters"}}', "lamp"),
        (
            b'{"error":{"message":"* GenerateContentRequest.tools[0].function_declarations[2].parameters'
            b'.properties[to].type: must be specified","code":400}}',
            "mail_send",
        ),
        (
            b'{"error":{"message":"Unable to submit request because `lamp` functionDeclaration'
            b' `parameters.on` schema didn\'t specify the schema type field.","code":400}}',
            "lamp",
        ),
        (b'{"message":"The value at toolConfig.tools.0.toolSpec.inputSchema.json.type is invalid"}', "get"),
        (b'{"detail":"Schema error in tool get_weather: x"}', "get_weather"),
        (b'{"message":"Tool schema invalid: mail_send parameters must be an object"}', "mail_send"),
        (b'{"message":"Tool schema invalid: lamp_post has no parameters, get a lamp"}', None),
        (
            b'{"detail":[{"type":"dict_type","loc":["body","tools",2,"function","parameters"],'
            b'"msg":"Input should be a valid dictionary"}]}',
            "mail_send",
        ),
        (b'[{"error":{"code":400,"message":"function_declarations[3].parameters: schema"}}]', "lamp"),
        (b'{"error":{"message":"Invalid schema for response_format"}}', None),
        (b'{"error":{"message":"tools.9.input_schema is invalid"}}', None),
    ],
)
def test_the_tool_whose_schema_is_refused_is_found(body: bytes, tool: str | None) -> None:
    error = from_status(400, read_problem(body), {})
    if tool is not None:
        assert isinstance(error, SchemaRefused) and error.reason == "protocol"
    index = refused_tool(read_problem(body), TOOLS)
    assert (None if index is None else TOOLS[index]) == tool


INVALID = ServiceProblem(("invalid_request_error",), message="Could not process image")
MAY_MEAN_AN_IMAGE: list[tuple[ModelError, bool]] = [
    (from_status(400, INVALID, {}), True),
    (from_status(400, ServiceProblem(), {}), True),
    (from_status(422, INVALID, {}), False),
    (from_status(500, INVALID, {}), False),
    (from_status(400, ServiceProblem(message="prompt is too long"), {}), False),
    (from_status(400, ServiceProblem(("content_filter",)), {}), False),
    (from_event(INVALID), True),
    (from_event(ServiceProblem(("image_parse_error",))), True),
    (from_event(ServiceProblem(("invalid_prompt",))), False),
    (from_event(ServiceProblem(("overloaded_error",))), False),
]


@pytest.mark.parametrize(("error", "may_mean_an_image"), MAY_MEAN_AN_IMAGE)
def test_an_invalid_request_without_a_clearer_cause_may_mean_an_image(
    error: ModelError, may_mean_an_image: bool
) -> None:
    assert isinstance(error, RequestRefused) == may_mean_an_image
    assert not may_mean_an_image or (error.reason, str(error)) == ("protocol", str(failure("protocol")))
