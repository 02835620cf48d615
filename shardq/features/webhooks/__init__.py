"""Webhooks: a POST to the URL of a customer, from a handler.

``destination`` checks where a hook may go, ``signing`` signs it, ``meaning`` says what an answer means, and ``poster``
sends. ``shardq.Webhooks`` (``engine/webhooks``) gives them the codec and the rules of an engine.
"""
