"""The gateway's HTTP side: routes, responses, metrics and the inspector's files."""
