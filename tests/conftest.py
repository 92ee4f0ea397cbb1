"""What all tests share: how Hypothesis runs."""

import os

from hypothesis import settings

# No deadlines: a shared machine may be slow, and slowness is no counterexample. CI repeats exactly.
settings.register_profile("house", deadline=None, derandomize="CI" in os.environ)
settings.register_profile("quick", settings.get_profile("house"), max_examples=25)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "house"))
