"""A long run under a steady load, in which nothing may grow."""
