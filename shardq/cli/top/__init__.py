"""The live screen of ``shardq top``: ``command`` is the loop, ``look`` reads the engine, ``state`` is what the user
chose, ``views`` are the tables, ``screen`` draws, ``keys`` reads the keyboard.
"""
