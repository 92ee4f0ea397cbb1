"""The A2A cards of participants."""

from typing import Final

from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)

from mcpp import Card, __version__

# In the order of preference: 1.0, and 0.3 for older clients.
VERSIONS: Final = ("1.0", "0.3")
_TEXT: Final = ["text/plain"]
_BEARER: Final = "bearer"


def agent_card(participant: str, card: Card | None, url: str, *, has_token: bool) -> AgentCard:
    """Return the card of a participant that is served at a URL."""
    description = card.description if card is not None else ""
    about = description or f"{participant}, a participant of a pod."
    skills = [_skill("chat", about)]
    if card is not None:
        tools = card.tools.values()
        skills += [_skill(each.name, each.description or each.name) for each in tools]
    made = AgentCard(
        name=participant,
        description=about,
        version=__version__,
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=version)
            for version in VERSIONS
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=False),
        default_input_modes=[*_TEXT, "application/json"],
        default_output_modes=_TEXT,
        skills=skills,
    )
    if has_token:
        scheme = HTTPAuthSecurityScheme(scheme="bearer")
        made.security_schemes[_BEARER].CopyFrom(SecurityScheme(http_auth_security_scheme=scheme))
        made.security_requirements.append(SecurityRequirement(schemes={_BEARER: StringList()}))
    return made


def _skill(id: str, description: str) -> AgentSkill:
    return AgentSkill(id=id, name=id, description=description, tags=[id])
