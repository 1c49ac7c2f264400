"""Measures that only the paper uses: misalignment, ablation of gates, contribution of gates."""
