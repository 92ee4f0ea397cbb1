"""A pod that replays a recorded stretch of a log: when entries arrive, and what is allowed."""
