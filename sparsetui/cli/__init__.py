"""The commands. Thin: they read arguments, call the rooms, print, and set exit codes."""
