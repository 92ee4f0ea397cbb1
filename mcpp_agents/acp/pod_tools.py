"""The pod's tools for an agent: `mcpp mcp` as an MCP server, which the agent starts itself.

It joins as a participant of its own, since the bridge uses the connection of the agent's name. In
the pod of this folder that participant is created; elsewhere its token has to be given.
"""

import sys
from collections.abc import Mapping
from typing import Any, Final

from acp.schema import EnvVariable, McpServerStdio

from mcpp.client import local_pod
from mcpp_agents.acp.permissions import ALLOW

SUFFIX: Final = "-tools"
# It may do anything but allow what an agent asks for: that is for people.
_CAPABILITIES: Final[list[dict[str, Any]]] = [
    {"kind": ["*", f"!mcp/request:tools/call:{ALLOW}"]},
]
# `-P`: the agent's folder must not be searched for modules.
_ARGUMENTS: Final = (
    "-P",
    "-c",
    "from mcpp.cli.console import main; raise SystemExit(main())",
    "mcp",
)


def tools_token(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the token for the tools of the agent `name`, None if there is none.

    It is MCPP_TOOLS_TOKEN; in the pod of this folder, a participant is created if needed.
    """
    given = environ.get("MCPP_TOOLS_TOKEN")
    if given or local_pod.is_named(environ):
        return given
    pod = local_pod.find()
    if pod is None:
        return None
    # Every session of the agent starts a server of its own.
    return pod.token(name + SUFFIX) or pod.add(name + SUFFIX, _CAPABILITIES, multiple=True)


def pod_server(name: str, address: local_pod.Address, token: str) -> McpServerStdio:
    """Return the MCP server for the agent `name`, which gets its own token in its environment."""
    variables = {"MCPP_URL": address.url, "MCPP_TOKEN": token, "MCPP_CA": address.ca}
    return McpServerStdio(
        name="pod",
        command=sys.executable,
        args=[*_ARGUMENTS, "--agent", name],
        env=[EnvVariable(name=name, value=value) for name, value in variables.items() if value],
    )
