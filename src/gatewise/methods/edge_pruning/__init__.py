"""Edge Pruning: training of a mask between 0 and 1 on every edge."""
