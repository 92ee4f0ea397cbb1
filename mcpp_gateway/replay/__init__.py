"""The command `mcpp replay`: serves a recorded stretch of a log as a read-only pod."""
