"""Sweeps: grids of searches, each with its evaluation on held-out pairs, through the run store.

What is in the store is not computed again; a sweep that was killed goes on when it is started again. Cells run in this
process, in several processes of one machine, or on a Ray cluster, with the same results.
"""

from gatewise.sweep.grid import Cell, Grid, read_grid
from gatewise.sweep.running import SweepForecast, SweepReport, run_sweep
from gatewise.sweep.size_comparison import SizeSummary, compare_sizes, draw_sizes

__all__ = [
    "Cell",
    "Grid",
    "SizeSummary",
    "SweepForecast",
    "SweepReport",
    "compare_sizes",
    "draw_sizes",
    "read_grid",
    "run_sweep",
]
