"""The command line: parses arguments, calls the Python API, prints. No logic of its own."""
