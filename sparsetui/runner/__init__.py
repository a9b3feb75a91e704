"""The investigation itself: which passes run when, on what budget, and what is written down.

Both faces (headless and the app) drive :class:`~sparsetui.runner.investigation.Investigation` and hear the same updates.
"""
