"""The dashboard: the state of one engine as web pages, and its operation by buttons. ``shardq.http.app`` serves it.

``README.md`` beside this file says what the pages show, how they are protected, and how to add one.
"""
