"""Small own widgets that repaint only the cells that changed."""
