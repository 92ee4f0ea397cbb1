"""The demo: a small pod at work, without a key and without a network.

`records` is a tool server with a time sheet in it. `analyst` pages through it, month after month:
each page is transient and collapses once it is noted. What looks wrong goes to `reviewer`, who
thinks in nested contexts. A correction is proposed, and waits for a person. `memory` remembers
what was concluded. Each runs as a process of its own.
"""
