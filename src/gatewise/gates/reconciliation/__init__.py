"""Two tasks at once: which edges to remove so that one task goes and another stays."""
