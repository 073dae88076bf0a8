"""The command line: what it parses, prints and draws."""
