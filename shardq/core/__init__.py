"""What shardq does to tasks, and how it reaches the servers. The core knows no feature and no engine."""
