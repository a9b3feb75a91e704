"""The engine: a process of its own in which an investigation runs, so that the app that shows it has little to do."""
