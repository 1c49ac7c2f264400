"""Programs of gates: gates composed through the graph, and what they predict of unseen interventions."""
