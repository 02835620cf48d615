"""What decoding may raise."""

from __future__ import annotations

import msgspec

UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""Of bytes that are no JSON or MessagePack: msgspec's error, which is a ValueError in its newest versions alone; broken
UTF-8, and values that are nested too deeply.
"""
