"""The MCP server that the conformance suite expects: its tools, resources and prompts.

Written with the official SDK, so that it serves the older and the newer revisions. It runs on
standard input and output, for a bridge, or with `--http` on the port in its environment.
"""

import hashlib
import hmac
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.subscriptions import PromptsListChanged, ResourceUpdated, ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

Context = ServerRequestContext[Any]
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8Dw"
    "HwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
)
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
KEY = b"not a secret"
MISSING_CAPABILITY = -32021
JSON_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
NAME_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}
OK_SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
DEFAULTS_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": True},
    },
}
_TITLED = [
    {"const": "value1", "title": "First Option"},
    {"const": "value2", "title": "Second Option"},
    {"const": "value3", "title": "Third Option"},
]
_OPTIONS = ["option1", "option2", "option3"]
ENUMS_SCHEMA = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": _OPTIONS},
        "titledSingle": {"type": "string", "oneOf": _TITLED},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": _OPTIONS}},
        "titledMulti": {"type": "array", "items": {"anyOf": _TITLED}},
    },
}

extra_tools: list[str] = []
extra_prompts: list[str] = []
subscribed: list[str] = []
changes = InMemorySubscriptionBus()


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


def elicitation(message: str, schema: dict[str, Any]) -> dict[str, Any]:
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def sampling(prompt: str, max_tokens: int = 100) -> dict[str, Any]:
    message = {"role": "user", "content": {"type": "text", "text": prompt}}
    return {
        "method": "sampling/createMessage",
        "params": {"messages": [message], "maxTokens": max_tokens},
    }


ROOTS: dict[str, Any] = {"method": "roots/list", "params": {}}


def questions(state: str | None = None, **requests: dict[str, Any]) -> dict[str, Any]:
    """Return a result that asks (the newer revisions)."""
    result: dict[str, Any] = {"resultType": "input_required", "inputRequests": requests}
    return result if state is None else result | {"requestState": state}


def sealed(state: str) -> str:
    return f"{state}.{hmac.new(KEY, state.encode(), hashlib.sha256).hexdigest()}"


def unsealed(sealed_state: Any) -> str:
    state, _, mac = str(sealed_state).rpartition(".")
    if not hmac.compare_digest(mac, sealed(state).rpartition(".")[2]):
        raise MCPError(types.INVALID_PARAMS, "the requestState is not ours")
    return state


def answers(context: Context) -> dict[str, Any]:
    given = (context.params or {}).get("inputResponses")
    return given if isinstance(given, dict) else {}


async def ask(context: Context, request: dict[str, Any]) -> Any:
    """Ask the client while the call runs (the older revisions)."""
    method = request["method"]
    models: dict[str, tuple[Any, Any]] = {
        "elicitation/create": (types.ElicitRequest, types.ElicitResult),
        "sampling/createMessage": (types.CreateMessageRequest, types.CreateMessageResult),
    }
    request_type, result_type = models[method]
    return await context.session.send_request(
        request_type.model_validate(request, by_name=False),
        result_type,
        metadata=ServerMessageMetadata(related_request_id=context.request_id),
    )


async def log(context: Context, message: str) -> None:
    params = types.LoggingMessageNotificationParams(level="info", data=message)
    await context.session.send_notification(
        types.LoggingMessageNotification(params=params), context.request_id
    )


# --- tools ---

Tool = Callable[[Context, dict[str, Any]], Awaitable[dict[str, Any]]]
TOOLS: dict[str, tuple[Tool, dict[str, Any]]] = {}


def tool(schema: dict[str, Any] | None = None, **properties: Any) -> Callable[[Tool], Tool]:
    described: dict[str, Any] = {"type": "object", "properties": properties}
    if properties and schema is None:
        described["required"] = list(properties)

    def register(function: Tool) -> Tool:
        TOOLS[function.__name__] = (function, schema or described)
        return function

    return register


STRING = {"type": "string"}


@tool()
async def test_simple_text(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    return text("This is a simple text response for testing.")


@tool()
async def test_image_content(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "image", "data": PNG, "mimeType": "image/png"}]}


@tool()
async def test_audio_content(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]}


def embedded(uri: str, mime_type: str, content: str) -> dict[str, Any]:
    return {
        "type": "resource",
        "resource": {"uri": uri, "mimeType": mime_type, "text": content},
    }


@tool()
async def test_embedded_resource(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    content = "This is an embedded resource content."
    return {"content": [embedded("test://embedded-resource", "text/plain", content)]}


@tool()
async def test_multiple_content_types(
    context: Context, arguments: dict[str, Any]
) -> dict[str, Any]:
    data = '{"test":"data","value":123}'
    return {
        "content": [
            {"type": "text", "text": "Multiple content types test:"},
            {"type": "image", "data": PNG, "mimeType": "image/png"},
            embedded("test://mixed-content-resource", "application/json", data),
        ]
    }


@tool()
async def test_tool_with_logging(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await log(context, message)
        await anyio.sleep(0.05)
    return text("logged")


@tool()
async def test_error_handling(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    return text("This tool intentionally returns an error for testing") | {"isError": True}


@tool()
async def test_tool_with_progress(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    for progress in (0, 50, 100):
        await context.session.report_progress(progress, 100)
        await anyio.sleep(0.05)
    return text("done")


@tool(prompt=STRING)
async def test_sampling(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    result = await ask(context, sampling(arguments["prompt"]))
    return text(f"LLM response: {result.content.text}")


@tool(message=STRING)
async def test_elicitation(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            "username": {"type": "string", "description": "User's response"},
            "email": {"type": "string", "description": "User's email address"},
        },
        "required": ["username", "email"],
    }
    result = await ask(context, elicitation(arguments["message"], schema))
    return text(f"User response: action={result.action}, content={json.dumps(result.content)}")


async def _complete(context: Context, schema: dict[str, Any]) -> dict[str, Any]:
    result = await ask(context, elicitation("Please fill in", schema))
    content = json.dumps(result.content)
    return text(f"Elicitation completed: action={result.action}, content={content}")


@tool()
async def test_elicitation_sep1034_defaults(
    context: Context, arguments: dict[str, Any]
) -> dict[str, Any]:
    return await _complete(context, DEFAULTS_SCHEMA)


@tool()
async def test_elicitation_sep1330_enums(
    context: Context, arguments: dict[str, Any]
) -> dict[str, Any]:
    return await _complete(context, ENUMS_SCHEMA)


@tool(schema=JSON_SCHEMA)
async def json_schema_2020_12_tool(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    return text(json.dumps(arguments))


@tool()
async def test_reconnection(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    if context.close_sse_stream is not None:
        await context.close_sse_stream()
    await anyio.sleep(0.1)
    return text("reconnected")


@tool()
async def test_input_required_result_elicitation(
    context: Context, arguments: dict[str, Any]
) -> dict[str, Any]:
    answer = answers(context).get("user_name")
    content = answer.get("content") if isinstance(answer, dict) else None
    if not isinstance(content, dict):
        return questions(user_name=elicitation("What is your name?", NAME_SCHEMA))
    return text(f"Hello, {content.get('name')}!")


@tool()
async def test_input_required_result_sampling(
    context: Context, arguments: dict[str, Any]
) -> dict[str, Any]:
    answer = answers(context).get("capital_question")
    if answer is None:
        return questions(capital_question=sampling("What is the capital of France?"))
    return text(str(answer["content"]["text"]))


@tool()
async def test_input_required_result_list_roots(
    context: Context, arguments: dict[str, Any]
) -> dict[str, Any]:
    answer = answers(context).get("client_roots")
    if answer is None:
        return questions(client_roots=ROOTS)
    return text(json.dumps(answer["roots"]))


@tool()
async def test_input_required_result_request_state(
    context: Context, arguments: dict[str, Any]
) -> dict[str, Any]:
    if not answers(context):
        confirm = elicitation("Please confirm", OK_SCHEMA)
        return questions(sealed("confirming"), confirm=confirm)
    unsealed((context.params or {}).get("requestState"))
    return text("state-ok")


@tool()
async def test_input_required_result_tampered_state(
    context: Context, arguments: dict[str, Any]
) -> dict[str, Any]:
    return await test_input_required_result_request_state(context, arguments)


@tool()
async def test_input_required_result_multiple_inputs(
    context: Context, arguments: dict[str, Any]
) -> dict[str, Any]:
    given = answers(context)
    if not {"user_name", "greeting", "client_roots"} <= given.keys():
        return questions(
            sealed("several"),
            user_name=elicitation("What is your name?", NAME_SCHEMA),
            greeting=sampling("Generate a greeting", 50),
            client_roots=ROOTS,
        )
    return text(json.dumps(sorted(given)))


@tool()
async def test_input_required_result_multi_round(
    context: Context, arguments: dict[str, Any]
) -> dict[str, Any]:
    given = answers(context)
    if "step1" in given:
        unsealed((context.params or {}).get("requestState"))
        schema = {
            "type": "object",
            "properties": {"color": {"type": "string"}},
            "required": ["color"],
        }
        return questions(
            sealed("step 2"), step2=elicitation("Step 2: What is your favorite color?", schema)
        )
    if "step2" in given:
        return text("both rounds")
    return questions(sealed("step 1"), step1=elicitation("Step 1: What is your name?", NAME_SCHEMA))


def _capabilities(context: Context) -> dict[str, Any]:
    meta = (context.params or {}).get("_meta") or {}
    return dict(meta.get(types.CLIENT_CAPABILITIES_META_KEY) or {})


@tool()
async def test_input_required_result_capabilities(
    context: Context, arguments: dict[str, Any]
) -> dict[str, Any]:
    if answers(context):
        return text("answered")
    asked: dict[str, Any] = {}
    if "sampling" in _capabilities(context):
        asked["question"] = sampling("What is the capital of France?")
    if "elicitation" in _capabilities(context):
        asked["name"] = elicitation("What is your name?", NAME_SCHEMA)
    return questions(**asked)


@tool()
async def test_missing_capability(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    if "sampling" not in _capabilities(context):
        required: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(MISSING_CAPABILITY, "the client does not sample", required)
    return text("it does")


@tool()
async def test_streaming_elicitation(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    return await test_input_required_result_elicitation(context, arguments)


@tool()
async def test_logging_tool(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    meta = (context.params or {}).get("_meta") or {}
    if types.LOG_LEVEL_META_KEY in meta:
        await log(context, "logged on request")
    return text("done")


@tool()
async def test_trigger_tool_change(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    extra_tools.append(f"added_{len(extra_tools)}")
    await changes.publish(ToolsListChanged())
    return text("changed")


@tool()
async def touch_resource(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    uri = "test://watched-resource"
    await changes.publish(ResourceUpdated(uri))
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS and uri in subscribed:
        await context.session.send_resource_updated(uri)
    return text("touched")


@tool()
async def test_trigger_prompt_change(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    extra_prompts.append(f"added_{len(extra_prompts)}")
    await changes.publish(PromptsListChanged())
    return text("changed")


@tool(
    schema={
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "query": {"type": "string"},
        },
        "required": ["query"],
    }
)
async def test_custom_header(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
    return text(json.dumps(arguments))


async def list_tools(context: Context, params: Any) -> dict[str, Any]:
    listed = {name: schema for name, (_, schema) in TOOLS.items()}
    listed |= {name: {"type": "object"} for name in extra_tools}
    return _cacheable(
        tools=[
            {"name": name, "description": name.replace("_", " "), "inputSchema": schema}
            for name, schema in listed.items()
        ]
    )


async def call_tool(context: Context, params: types.CallToolRequestParams) -> dict[str, Any]:
    if params.name not in TOOLS:
        raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name}")
    result = await TOOLS[params.name][0](context, params.arguments or {})
    return {"resultType": "complete"} | result


# --- resources and prompts ---

RESOURCES: dict[str, dict[str, Any]] = {
    "test://static-text": {
        "mimeType": "text/plain",
        "text": "This is the content of the static text resource.",
    },
    "test://static-binary": {"mimeType": "image/png", "blob": PNG},
    "test://watched-resource": {"mimeType": "text/plain", "text": "watched"},
}


def _cacheable(**members: Any) -> dict[str, Any]:
    return {"resultType": "complete", "ttlMs": 1000, "cacheScope": "public"} | members


async def list_resources(context: Context, params: Any) -> dict[str, Any]:
    return _cacheable(
        resources=[
            {"uri": uri, "name": uri, "description": uri, "mimeType": content["mimeType"]}
            for uri, content in RESOURCES.items()
        ]
    )


async def list_templates(context: Context, params: Any) -> dict[str, Any]:
    template = {
        "uriTemplate": "test://template/{id}/data",
        "name": "template",
        "description": "data by id",
        "mimeType": "application/json",
    }
    return _cacheable(resourceTemplates=[template])


async def read_resource(context: Context, params: types.ReadResourceRequestParams) -> Any:
    uri = str(params.uri)
    content = RESOURCES.get(uri)
    if content is None and uri.startswith("test://template/") and uri.endswith("/data"):
        id = uri.removeprefix("test://template/").removesuffix("/data")
        data = {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}
        content = {"mimeType": "application/json", "text": json.dumps(data)}
    if content is None:
        raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": uri})
    return _cacheable(contents=[{"uri": uri, **content}])


async def subscribe(context: Context, params: Any) -> dict[str, Any]:
    subscribed.append(str(params.uri))
    return {}


async def unsubscribe(context: Context, params: Any) -> dict[str, Any]:
    subscribed.remove(str(params.uri))
    return {}


def message(content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": content}


PROMPTS: dict[str, list[str]] = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
    "test_input_required_result_prompt": [],
}


async def list_prompts(context: Context, params: Any) -> dict[str, Any]:
    listed = PROMPTS | {name: [] for name in extra_prompts}
    return _cacheable(
        prompts=[
            {
                "name": name,
                "description": name.replace("_", " "),
                "arguments": [
                    {"name": argument, "description": argument, "required": True}
                    for argument in arguments
                ],
            }
            for name, arguments in listed.items()
        ]
    )


async def get_prompt(context: Context, params: types.GetPromptRequestParams) -> dict[str, Any]:
    given = params.arguments or {}
    match params.name:
        case "test_simple_prompt":
            shown = [{"type": "text", "text": "This is a simple prompt for testing."}]
        case "test_prompt_with_arguments":
            line = f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'"
            shown = [{"type": "text", "text": line}]
        case "test_prompt_with_embedded_resource":
            content = "Embedded resource content for testing."
            shown = [
                embedded(given["resourceUri"], "text/plain", content),
                {"type": "text", "text": "Please process the embedded resource above."},
            ]
        case "test_prompt_with_image":
            shown = [
                {"type": "image", "data": PNG, "mimeType": "image/png"},
                {"type": "text", "text": "Please analyze the image above."},
            ]
        case "test_input_required_result_prompt":
            if not answers(context):
                schema = {
                    "type": "object",
                    "properties": {"context": {"type": "string"}},
                    "required": ["context"],
                }
                asked = elicitation("What context should the prompt use?", schema)
                return questions(user_context=asked)
            shown = [{"type": "text", "text": "with context"}]
        case _:
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {params.name}")
    return {"resultType": "complete", "messages": [message(content) for content in shown]}


async def complete(context: Context, params: types.CompleteRequestParams) -> dict[str, Any]:
    values = ["paris", "park", "party"]
    found = [value for value in values if value.startswith(params.argument.value)]
    completion = {"values": found, "total": len(found), "hasMore": False}
    return {"resultType": "complete", "completion": completion}


async def set_level(context: Context, params: Any) -> dict[str, Any]:
    return {}


def make_server() -> Server[Any]:
    server: Server[Any] = Server(
        "conformance fixture",
        version="1",
        on_subscriptions_listen=ListenHandler(changes),
        get_tool_input_schema=lambda name: TOOLS[name][1] if name in TOOLS else None,
    )
    handlers: dict[str, tuple[Any, Any]] = {
        "tools/list": (types.PaginatedRequestParams, list_tools),
        "tools/call": (types.CallToolRequestParams, call_tool),
        "resources/list": (types.PaginatedRequestParams, list_resources),
        "resources/templates/list": (types.PaginatedRequestParams, list_templates),
        "resources/read": (types.ReadResourceRequestParams, read_resource),
        "resources/subscribe": (types.SubscribeRequestParams, subscribe),
        "resources/unsubscribe": (types.UnsubscribeRequestParams, unsubscribe),
        "prompts/list": (types.PaginatedRequestParams, list_prompts),
        "prompts/get": (types.GetPromptRequestParams, get_prompt),
        "completion/complete": (types.CompleteRequestParams, complete),
        "logging/setLevel": (types.SetLevelRequestParams, set_level),
    }
    for method, (params_type, handler) in handlers.items():
        server.add_request_handler(method, params_type, handler)
    return server


async def serve_stdio(*, legacy: bool) -> None:
    server = make_server()
    options = server.create_initialization_options(NotificationOptions(True, True, True))
    async with stdio_server() as (reading, writing):
        if legacy:
            from mcp.server.runner import serve_loop

            await serve_loop(server, reading, writing, lifespan_state=None, init_options=options)
        else:
            await server.run(reading, writing, options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--http"]:
        import uvicorn

        app = make_server().streamable_http_app()
        uvicorn.run(app, port=int(os.environ["PORT"]), log_level="warning")
    else:
        anyio.run(lambda: serve_stdio(legacy="--legacy" in sys.argv))
