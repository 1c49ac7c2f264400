"""Models from GGUF files: the file, the tokenizer, the families of architectures."""
