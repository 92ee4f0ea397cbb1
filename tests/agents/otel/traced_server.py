"""An MCP server on the official SDK, which exports its own spans and tells which trace it saw."""

from mcp.server.mcpserver import Context, MCPServer
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

provider = TracerProvider(resource=Resource.create({"service.name": "the server"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
server = MCPServer("traced")


@server.tool()
async def show_trace(context: Context) -> str:
    """Return the trace context of this call."""
    return str((context.request_context.meta or {}).get("traceparent"))


if __name__ == "__main__":
    server.run("stdio")
