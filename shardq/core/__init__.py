"""The work that shardq does on tasks, and its way to the servers. The core knows no feature and no engine."""
