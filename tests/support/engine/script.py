"""What the scripted engine is told to do."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

#: The phases of a start, in order, and `serving`; a fault happens when its phase has begun.
PHASES = ("starting", "loading", "allocating", "warming", "serving")


@dataclass(frozen=True)
class Script:
    """`fault` at `at`: exit (code `code`), hang, kill (signal 9 to itself), flood (100 MB/s of log
    from then on), silent (no log at all), eat (memory without end), slow-read (shards at 1 MB/s).

    Of what it serves: `answers` right, garbage, think-leak or refuse; `model`: serves somebody
    else's; after a request that holds `dies_on` no request ends any more, while the API answers.
    `say`: lines said just before the fault. `first`: only in that many first starts, counted in the
    file `counter`. `pace_s`: seconds between two log lines. `shards`: of the pretended checkpoint.
    """

    fault: str = ""
    at: str = "loading"
    code: int = 1
    say: tuple[str, ...] = ()
    answers: str = "right"
    model: str = ""
    dies_on: str = ""
    first: int = 0
    counter: str = ""
    pace_s: float = 0.0
    shards: int = 4

    def text(self) -> str:
        """For the environment."""
        return json.dumps(asdict(self))

    @classmethod
    def of_environment(cls) -> Script:
        """The script this process was started with; a good engine where there is none."""
        values = json.loads(os.environ.get("SCRIPTED_ENGINE", "{}"))
        script = cls(**{**values, "say": tuple(values.get("say", ()))})
        if not script.counter:
            return script
        counter = Path(script.counter)
        starts = len(counter.read_text()) if counter.exists() else 0
        counter.write_text("x" * (starts + 1))
        return cls() if script.first and starts >= script.first else script
