"""Working directory of a build, and the file that results from it."""
