"""shardq in the frameworks and queues of others. Each is imported only where it is used."""
