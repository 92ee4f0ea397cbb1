"""A model as a participant: it answers questions, reasons in contexts and calls tools."""

from mcpp_agents.model.agent import ModelAgent
from mcpp_agents.model.limits import ModelLimits
from mcpp_agents.model.providers import Provider, ProviderError, Reply, ToolUse

__all__ = ["ModelAgent", "ModelLimits", "Provider", "ProviderError", "Reply", "ToolUse"]
