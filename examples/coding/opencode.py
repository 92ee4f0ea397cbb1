"""The settings with which opencode uses the fake model, and nothing beyond this machine."""

import json
import os
from pathlib import Path

# The variables that `mcpp bridge --env` has to pass on.
VARIABLES = (
    "OPENCODE_CONFIG_CONTENT",
    "OPENCODE_DISABLE_AUTOUPDATE",
    "OPENCODE_DISABLE_MODELS_FETCH",
    "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
)


def program() -> Path | None:
    """Return the program, of `make setup-agents` or on PATH; None if it is not installed."""
    here = Path(__file__).parents[2] / ".coding-agents" / "node_modules"
    paths = [
        *sorted(here.glob("opencode-*/bin/opencode")),
        *(Path(folder) / "opencode" for folder in os.environ.get("PATH", "").split(":") if folder),
    ]
    # The one without AVX2 comes last; it runs everywhere, but slower.
    paths.sort(key=lambda path: "baseline" in str(path))
    return next((path for path in paths if os.access(path, os.X_OK) and path.is_file()), None)


def environment(model_url: str, home: Path) -> dict[str, str]:
    """Return the variables that opencode needs: the model, and folders of its own in `home`."""
    model = {"name": "scripted", "tool_call": True, "limit": {"context": 100_000, "output": 4_000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "A script",
        "options": {"baseURL": model_url, "apiKey": "none"},
        "models": {"scripted": model},
    }
    config = {
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,
        "lsp": False,
        "formatter": False,
        "model": "fake/scripted",
        "small_model": "fake/scripted",
        "enabled_providers": ["fake"],
        "provider": {"fake": provider},
        "permission": {"edit": "ask", "bash": "ask", "webfetch": "deny"},
    }
    values = {
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
        **{name: "1" for name in VARIABLES if name.startswith("OPENCODE_DISABLE")},
    }
    for name in ("CACHE", "CONFIG", "DATA", "STATE"):
        values[f"XDG_{name}_HOME"] = str(home / name.lower())
    return values
