"""Synthetic models whose gates are known: the ground truth that methods and tests are held to."""
