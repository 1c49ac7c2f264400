"""The paper's commands: `gatewise reproduce`, `toy` and `truth`."""
