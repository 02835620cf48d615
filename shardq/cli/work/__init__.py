"""work: the command that runs a worker. ``target`` finds it, ``serving`` runs it, ``reloading`` runs it anew when its
files change, ``command`` is the command.
"""
