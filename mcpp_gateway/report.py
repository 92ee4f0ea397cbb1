"""What a gateway would do with a configuration, in words: `mcpp gateway --check`."""

from collections.abc import Iterator

from mcpp_gateway.config import Config


def describe(config: Config) -> Iterator[str]:
    """Yield lines for people."""
    gateway = config.gateway
    scheme = "wss" if gateway.tls_cert else "ws"
    host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
    yield f"listen     {scheme}://{host}:{gateway.port}/ws"
    if gateway.trusted_proxies:
        yield f"proxies    X-Forwarded-For counts from {', '.join(gateway.trusted_proxies)}"
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
