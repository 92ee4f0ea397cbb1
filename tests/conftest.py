"""What all tests share: how Hypothesis runs."""

import os

from hypothesis import settings

# No deadlines: a shared machine may be slow, and slowness is no counterexample. CI repeats exactly.
settings.register_profile("house", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("house")
