"""Measures that only the paper uses: misalignment, ablation and contribution of gates, incompleteness."""
