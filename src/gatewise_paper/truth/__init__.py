"""How often labels and tests are right on synthetic models with known gates, for `gatewise truth`."""
