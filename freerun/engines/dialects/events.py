"""Server-sent events, as bytes."""

from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"


def event(message: Any, kind: str | None = None) -> bytes:
    """One event. OpenAI's completions have none but data; the other dialects name the kind of each."""
    head = f"event: {kind}\n".encode() if kind else b""
    return head + b"data: " + msgspec.json.encode(message) + b"\n\n"
