"""What holds for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# The same examples in each run, so that a red run is about the change and not about the draw. Fresh ones are drawn where
# that is the point: HYPOTHESIS_PROFILE=random, which `make torture` sets.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
