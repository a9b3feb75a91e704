"""The release half: trade-off matrix, energy, replay, bandwidth lens, rollback rehearsal, and closing."""
