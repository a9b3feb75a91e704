"""What runs inside a variant's own interpreter: Python 3.9 or newer, the standard library, NumPy and torch."""
