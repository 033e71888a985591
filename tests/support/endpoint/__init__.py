"""A scripted OpenAI-compatible endpoint: known tokens at known times, and known ways to go wrong.

It speaks real HTTP/1.1 over TCP or a Unix socket, so what is tested is the client as it is used.
`python -m tests.support.endpoint` serves it in a process of its own.
"""

from tests.support.endpoint.behaviours import by_model
from tests.support.endpoint.reply import Reply, Served, words
from tests.support.endpoint.server import Endpoint

__all__ = ["Endpoint", "Reply", "Served", "by_model", "words"]
