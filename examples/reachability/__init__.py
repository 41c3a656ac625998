"""Which pages can be reached from a root, kept up to date over a loop while links arrive."""
