"""The paper's commands: `gatewise reproduce`, `toy`, `truth`, `misalignment` and `ablate-gates`."""
