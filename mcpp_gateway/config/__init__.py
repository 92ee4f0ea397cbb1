"""The configuration: a TOML file, overridden by the environment, checked and frozen.

Any mistake raises one `ConfigError` that names the key and, if it can be found, the line of the
file.
"""

from mcpp_gateway.config.errors import ConfigError
from mcpp_gateway.config.issuers import OWN_ISSUER, IssuerSettings
from mcpp_gateway.config.loading import Config, load, parse
from mcpp_gateway.config.participants import digest, is_token
from mcpp_gateway.config.sections import (
    ClusterSection,
    GatewaySection,
    LogSection,
    RetentionSection,
)

__all__ = [
    "OWN_ISSUER",
    "ClusterSection",
    "Config",
    "ConfigError",
    "GatewaySection",
    "IssuerSettings",
    "LogSection",
    "RetentionSection",
    "digest",
    "is_token",
    "load",
    "parse",
]
