"""Environment variables that override the file, and the place of a mistake."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from mcpp_gateway.config.errors import ConfigError
from mcpp_gateway.config.sections import ClusterSection, GatewaySection, LogSection

# Strings, even if they look like numbers: a token may consist of digits.
_TEXT_KEYS: Final = {
    field.name
    for section in (GatewaySection, LogSection, ClusterSection)
    for field in msgspec.structs.fields(section)
    if field.type in (str, str | None)
}


def override(document: dict[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Apply variables such as `MCPP_LIMITS__BURST=10`; return the variable of each key set."""
    overridden = {}
    for variable in sorted(environment):
        section, separator, rest = variable.removeprefix("MCPP_").lower().partition("__")
        if not (variable.startswith("MCPP_") and separator):
            continue
        if section not in ("gateway", "limits", "log", "cluster"):
            known = "MCPP_GATEWAY__…, MCPP_LIMITS__…, MCPP_LOG__… and MCPP_CLUSTER__…"
            raise ConfigError(f"{variable}: unknown; the environment can set {known}")
        if not isinstance(document.setdefault(section, {}), dict):
            continue  # a mistake in the file, reported later
        text = environment[variable]
        document[section][rest] = text if rest in _TEXT_KEYS else _toml_value(text)
        overridden[f"{section}.{rest}"] = variable
    return overridden


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def mentioned_key(path: str, reason: str) -> str:
    """Return the key that a message of msgspec is about."""
    unknown = re.search(r"unknown field `([^`]*)`", reason)
    parts = [part for part in (path, unknown[1] if unknown else "") if part]
    return ".".join(parts)


def place_of(name: str, text: str, key: str) -> str:
    """Return the place of a key: the file, the line if it can be found, and the key."""
    for number, found in _keys(text):
        if found == key:
            return f"{name}:{number}: {key}"
    return f"{name}: {key}" if key else name


def _keys(text: str) -> Iterator[tuple[int, str]]:
    """Yield the dotted keys that a TOML text sets, with their lines. Approximate."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
            table = _plain_key(header[1])
            yield number, table
        elif assignment := re.match(r"\s*([A-Za-z0-9_.\"'@:-]+)\s*=", line):
            key = _plain_key(assignment[1])
            yield number, f"{table}.{key}" if table else key


def _plain_key(key: str) -> str:
    return re.sub(r"\s*\.\s*", ".", key.replace('"', "").replace("'", ""))
