"""Far tasks in a table: its rows, the commands on them, and what is loaded when it falls due."""
