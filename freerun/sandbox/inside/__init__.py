"""What runs in a container: the standard library and itself, nothing else, so that a bare interpreter can import it."""
