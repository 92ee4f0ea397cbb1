"""A model as a participant: thinks in contexts that others can watch, and uses their tools."""

from mcpp_agents.model.agent import ModelAgent, ModelLimits
from mcpp_agents.model.providers import Provider, ProviderError, Reply, ToolUse

__all__ = ["ModelAgent", "ModelLimits", "Provider", "ProviderError", "Reply", "ToolUse"]
