"""Errors that decoding raises."""

from __future__ import annotations

import msgspec

UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""Bytes that are no JSON or MessagePack raise msgspec's error, which is a ValueError in its newest versions alone;
broken UTF-8 is a ValueError, and values that are nested too deeply are a RecursionError.
"""
