"""Where an engine listens: a TCP port or a Unix socket."""

from __future__ import annotations

from pydantic import model_validator

from dsctl.model.base import Value


class Endpoint(Value):
    """Either `host` and `port`, or `uds`, the path of a Unix socket.

    Behind a gateway: `certificate` is the file whose certificates are trusted there (None: no TLS),
    `key_file` is the file whose first key opens it, and `monitor_port` the port
    beside it where `/health` and `/metrics` are, which the API's port does not show.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    uds: str | None = None
    certificate: str | None = None
    key_file: str | None = None
    monitor_port: int | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Endpoint:
        if (self.port is None) == (self.uds is None):
            raise ValueError("an endpoint has either a port or a Unix socket")
        return self

    @property
    def base_url(self) -> str:
        """Base of HTTP URLs; over a Unix socket the host name means nothing."""
        if self.uds is not None:
            return "http://engine"
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://{host}:{self.port}"

    @property
    def monitor(self) -> Endpoint:
        """Where `/health` and `/metrics` are: here, or beside here behind a gateway."""
        if self.monitor_port is None:
            return self
        return Endpoint(port=self.monitor_port)

    def __str__(self) -> str:
        return f"unix:{self.uds}" if self.uds is not None else f"{self.base_url}/v1"
