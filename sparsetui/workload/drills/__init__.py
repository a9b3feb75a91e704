"""Real regressions to practise on, all on one classifier that is really trained and really pruned."""
