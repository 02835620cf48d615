"""The far store: tasks that are due in weeks wait in a table of a database, and are loaded when they fall due."""
