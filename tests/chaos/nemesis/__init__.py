"""What is done to the servers and programs of a round, and how the judge is told of it."""
