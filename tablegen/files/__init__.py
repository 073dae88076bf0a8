"""Where a build lives until it is done, and the file it becomes."""
