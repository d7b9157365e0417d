"""The code that runs in a container. It imports only itself and the standard library, so a bare interpreter runs it."""
