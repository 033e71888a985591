"""Serve the behaviours until stdin closes: `python -m tests.support.endpoint [PORT]`."""

import sys

from tests.support.endpoint import Endpoint, by_model
from tests.support.endpoint.behaviours import MODELS

with Endpoint(by_model, models=MODELS, port=int(sys.argv[1]) if len(sys.argv) > 1 else 0) as server:
    print(server.url, flush=True)
    sys.stdin.read()
