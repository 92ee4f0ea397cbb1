"""Warnings: what a configuration allows and should perhaps not."""

import ipaddress
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mcpp.protocol.globs import compile_glob
from mcpp_gateway.config.sections import PodSection, Sections

_MANY: Final = 5
_SHORT_TOKEN: Final = 16
_ALL_MAY_READ: Final = 0o004
_OTHERS_MAY_READ: Final = 0o044
_OTHERS_MAY_WRITE: Final = 0o022


def unsafe(sections: Sections, folder: Path) -> Iterator[str]:
    """Yield a line for each thing that is unsafe."""
    gateway = sections.gateway
    if gateway.tls_cert is None and not _is_loopback(gateway.host):
        yield (
            f"gateway.host: {gateway.host} without TLS: tokens and envelopes can be read on the "
            "way; set tls_cert and tls_key, or listen on 127.0.0.1 behind a proxy"
        )
    if gateway.metrics_token is not None:
        yield from of_length(gateway.metrics_token, "gateway.metrics_token")
    for proxy in gateway.trusted_proxies:
        if not ipaddress.ip_network(proxy).prefixlen:
            yield (
                f"gateway.trusted_proxies: {proxy} lets every client choose its address, so that "
                "wrong tokens are no longer counted by address; list your proxies alone"
            )
    for pod, section in sections.pods.items():
        yield from _of_pod(pod, section, folder)
    if sections.admin.token_file is not None:
        yield from _of_file(sections.admin.token_file, "admin.token_file", folder)
    for key, name in (
        ("gateway.tls_key", gateway.tls_key),
        ("cluster.tls_key", sections.cluster.tls_key),
        ("cluster.credentials", sections.cluster.credentials),
    ):
        if name is not None:
            yield from _of_file(name, key, folder)
    if sections.tokens.path is not None:
        yield from of_signing_keys(folder / sections.tokens.path)
    yield from _of_issuers(sections)
    yield from _of_kept_keys(sections)


def of_length(token: str, where: str) -> Iterator[str]:
    """Yield a line if a token is short. It does not contain the token: it ends up in logs."""
    if len(token) < _SHORT_TOKEN:
        yield f"{where} is shorter than {_SHORT_TOKEN} characters and can be guessed"


def of_file(path: Path, has_secrets: bool) -> Iterator[str]:
    """Yield a line if everyone on the machine can read a configuration that holds secrets."""
    if has_secrets and _allows(path, _ALL_MAY_READ):
        yield (
            f"{path}: holds tokens or passwords, and every user of this machine can read it "
            "(chmod o-r)"
        )


def of_signing_keys(folder: Path) -> Iterator[str]:
    """Yield a line if others can add keys that sign tokens, and for each that they can read."""
    if _allows(folder, _OTHERS_MAY_WRITE):
        yield f"tokens.path: other users can add keys to {folder}, and sign tokens (chmod go-w)"
    for path in sorted(folder.glob("key-*.pem")):
        if _allows(path, _OTHERS_MAY_READ | _OTHERS_MAY_WRITE):
            yield (
                f"tokens.path: other users can read or change {path}, which signs tokens "
                "(chmod go-rwx)"
            )


def _of_pod(pod: str, section: PodSection, folder: Path) -> Iterator[str]:
    anything = []
    for id, participant in section.participants.items():
        if participant.token_file is not None:
            key = f"pods.{pod}.participants.{id}.token_file"
            yield from _of_file(participant.token_file, key, folder)
        if any(map(_is_everything, participant.capabilities)):
            anything.append(id)
    if len(anything) > _MANY:
        yield (
            f"pods.{pod}: {len(anything)} participants may send everything, also in requests to "
            "each other's tools; list what each needs in its capabilities"
        )


def _is_everything(pattern: Mapping[str, Any]) -> bool:
    """Return whether a capability is for every envelope, as `{kind = "*"}` and `{kind = "**"}`."""
    kinds = pattern.get("kind")
    texts = list(map(str, kinds if isinstance(kinds, list) else [kinds]))
    is_narrowed = len(pattern) > 1 or any(text.startswith("!") for text in texts)
    return not is_narrowed and any(set(text) == {"*"} for text in texts)


def _of_file(name: str, key: str, folder: Path) -> Iterator[str]:
    if _allows(folder / name, _ALL_MAY_READ):
        yield f"{key}: every user of this machine can read {name} (chmod o-r)"


def _allows(path: Path, mode: int) -> bool:
    """Return whether the permissions of a file have one of these bits."""
    try:
        return bool(path.stat().st_mode & mode)
    except OSError:
        return False


def _of_issuers(sections: Sections) -> Iterator[str]:
    free = [name for name, each in sections.issuers.items() if "*" in each.allow.participants]
    signs_itself = sections.tokens.path is not None
    if len(sections.issuers) + signs_itself > 1 and free:
        yield (
            f"issuers.{free[0]}.allow.participants: '*' with other issuers, or tokens of this "
            "gateway: the first to use a name has it; give each issuer a pattern of its own"
        )
    for name, each in sections.issuers.items():
        allow, key = each.allow, f"issuers.{name}.allow"
        allows_all = any(map(_is_everything, allow.capabilities))
        if "*" in allow.pods and "*" in allow.participants and allows_all:
            yield (
                f"{key}: everyone it signs tokens for may join every pod under any free name and "
                "send everything; set pods, participants or capabilities"
            )
        patterns = [compile_glob(pattern) for pattern in allow.pods]
        if sections.pods and not any(test(pod) for test in patterns for pod in sections.pods):
            yield f"{key}.pods: no pod has such a name, so that its tokens admit to none"


def _of_kept_keys(sections: Sections) -> Iterator[str]:
    if sections.log.kind != "memory" or sections.tokens.path is not None:
        return
    for name, issuer in sections.issuers.items():
        if issuer.jwks_url is not None:
            yield (
                f"issuers.{name}: without a log in files and without tokens.path, its keys are not "
                "kept over a restart; while its key server is down, its tokens then have to wait"
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
