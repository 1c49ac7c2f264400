"""The two runs of a batch of pairs: activations of all nodes, batches, the residual stream, memory."""
