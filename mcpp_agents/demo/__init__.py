"""The demo agents of `mcpp up --demo`; they need neither an API key nor a network.

`records` is a tool server that holds a time sheet. `analyst` reads it page by page, one month after
another; each page is a transient result and is collapsed once it has been noted. Suspicious entries
go to `reviewer`, which reasons in nested contexts. Corrections are proposed and wait for a person's
approval. `memory` stores the conclusions. Each agent runs in its own process.
"""
