"""Studies: one module per table or figure of the paper, on the public surface only."""
