"""One adapter per architecture: where the weights of a layer are."""
