"""The passes and the interventions: what runs inside the worker, next to the user's code.

Everything in this package runs under the variant's own interpreter. It needs the standard library, NumPy and torch
(>= 2.2) and speaks plain JSON-able dictionaries; the parent turns those into typed records.
"""
