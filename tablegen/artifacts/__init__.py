"""Tables that travel: written to a directory with a registry of them, and fetched from one."""
