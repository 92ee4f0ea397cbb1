"""What a gateway would do with a configuration, and if it could start: `mcpp gateway --check`."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from mcpp_gateway.config import Config, ConfigError


def check_folders(config: Config) -> None:
    """Check that this user may write to the folders that a gateway needs. Raises ConfigError.

    A folder that does not exist is not created.
    """
    if config.log.kind == "file":
        for each in ("", *config.pods):
            _check_writable(Path(config.log.path, each), "log.path")
    if config.token_folder is not None:
        folder = Path(config.token_folder)
        if not folder.parent.exists():  # `TokenStore` does not create it
            raise ConfigError(f"tokens.path: {folder.parent}: no such folder")
        _check_writable(folder, "tokens.path")
        from mcpp_gateway.tokens.service import check_issued  # needs an extra

        check_issued(config)


def _check_writable(path: Path, key: str) -> None:
    """Create a file without a name in a folder, or in the nearest above it that exists."""
    try:
        while not path.exists():
            path = path.parent
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(f"{key}: cannot write to {path}: {error.strerror}") from None


def describe(config: Config) -> Iterator[str]:
    """Yield lines for people."""
    gateway = config.gateway
    scheme = "wss" if gateway.tls_cert else "ws"
    host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
    yield f"listen     {scheme}://{host}:{gateway.port}/ws"
    if gateway.trusted_proxies:
        yield f"proxies    X-Forwarded-For counts from {', '.join(gateway.trusted_proxies)}"
    others = "" if gateway.metrics_token is None else " and all who have its token"
    yield f"metrics    /metrics, for this machine{others}"
    if gateway.mcp:
        yield "mcp        /mcp, for participants that are MCP clients"
    where = {"memory": "in memory; a restart loses it", "file": config.log.path}
    servers = config.cluster.shown_servers
    yield f"log        {config.log.kind}: {where.get(config.log.kind, servers)}"
    for pod, settings in config.pods.items():
        names = ", ".join(each.id for each in settings) or "no participant is configured"
        own = " (own limits)" if pod in config.pod_limits else ""
        yield f"pod        {pod}{own}: {names}"
    for issuer in config.issuers:
        pods = ", ".join(issuer.allow.pods)
        yield f"issuer     {issuer.name}: {issuer.keys} for pods {pods}"
    if config.token_folder is not None:
        yield f"tokens     signed by this gateway, in {config.token_folder}"
    if config.shares_tokens:
        yield "tokens     signed by this cluster, which keeps the keys"
    roles = [
        text
        for text, is_on in (
            ("its own token", config.admin_token is not None),
            ("signed tokens with the role", config.admin_signed),
        )
        if is_on
    ]
    yield f"admin      {' and '.join(roles) or 'off'}"
    for warning in config.warnings:
        yield f"WARNING    {warning}"
