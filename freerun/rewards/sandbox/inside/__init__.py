"""What runs in a cell: the standard library and itself, nothing else, so that a bare interpreter can import it."""
