"""Blocks of work in a pod, as `async with`: contexts, their templates, and claims."""
