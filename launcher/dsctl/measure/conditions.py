"""What a result was measured under: enough to compare two results or to refuse to."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import Field

from dsctl.model.base import Value


class Conditions(Value):
    """Where an answer or number comes from. `facts` are redacted; None: not known."""

    model: str
    endpoint_kind: str
    dsctl_version: str
    profile: str | None = None
    overrides: dict[str, str] = Field(default_factory=dict)
    engine: str | None = None
    engine_version: str | None = None
    engine_argv: tuple[str, ...] = ()
    image_digest: str | None = None
    max_model_len: int | None = None
    facts: dict[str, Any] | None = None

    @property
    def digest(self) -> str:
        """Names the configuration; what the machine happened to be doing is not part of it."""
        kept = self.model_dump(mode="json", exclude={"facts", "dsctl_version", "endpoint_kind"})
        text = json.dumps(kept, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
