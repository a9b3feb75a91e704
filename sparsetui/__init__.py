"""sparsetui: find the first failing mechanism after a model was pruned, and prove it.

This file is read by foreign interpreters too (see ``worker/``), so it imports nothing.
"""

__version__ = "0.1.0"
