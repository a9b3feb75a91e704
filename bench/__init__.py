"""Measurements of the tool itself: speed against named peers, and how often it is right."""
