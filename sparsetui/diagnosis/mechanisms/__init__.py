"""The mechanisms, one file a stage. Each module lists its own in ``MECHANISMS``, in the order they are tried."""
