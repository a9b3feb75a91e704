"""Typed records of what was measured, and the catalogues that tell what a name means."""
