"""Which server to ask: a URL, a Unix socket, or the running deployment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dsctl.errors import ConfigError
from dsctl.model.endpoint import Endpoint

if TYPE_CHECKING:
    import ssl

#: Read when no key is given; the name that OpenAI's own clients use.
KEY_VARIABLE = "OPENAI_API_KEY"


@dataclass(frozen=True)
class Target:
    """`base_url` ends before `/v1`; with `uds` the requests go through that socket.

    `certificate`: a file of certificates to trust instead of the system's, whatever host they name:
    our own gateway's, asked at an address of this machine. `monitor_url`: where `/metrics` and
    `/health` are, if not here.
    """

    base_url: str
    uds: str | None = None
    api_key: str | None = field(default=None, repr=False)
    certificate: str | None = None
    monitor_url: str | None = None

    @classmethod
    def parse(cls, text: str, api_key: str | None = None) -> Target:
        """From `http(s)://HOST[:PORT][/PREFIX][/v1]`, `HOST:PORT` or `unix:/PATH`.

        Raises:
            ConfigError: it is none of these.
        """
        key = api_key if api_key is not None else os.environ.get(KEY_VARIABLE)
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            path = path.removeprefix("//") if path.startswith("///") else path
            if not path.startswith("/"):
                raise _bad(text, "the socket's path must be absolute")
            return cls("http://engine", path, key)
        url = text if "://" in text else f"http://{text}"
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError as error:
            raise _bad(text, str(error)) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _bad(text, "it is not an http address")
        if parts.username is not None:
            raise _bad("the address", "keep credentials out of it; use --api-key-env")
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(f"{parts.scheme}://{parts.netloc}{prefix}", None, key)

    @classmethod
    def of(cls, endpoint: Endpoint, api_key: str | None = None) -> Target:
        """The target of a deployment's endpoint; without a key given, the deployment's own."""
        if api_key is None and endpoint.key_file is not None:
            from dsctl.keys import KeyFile

            known = KeyFile(Path(endpoint.key_file)).first()
            api_key = known.secret if known else None
        monitor = endpoint.monitor.base_url if endpoint.monitor is not endpoint else None
        return cls(endpoint.base_url, endpoint.uds, api_key, endpoint.certificate, monitor)

    @property
    def monitor(self) -> Target:
        """Where `/metrics` and `/health` are asked for."""
        return self if self.monitor_url is None else Target(self.monitor_url)

    def tls(self) -> ssl.SSLContext:
        """What an https connection trusts.

        Raises:
            ConfigError: the certificate cannot be read.
        """
        import ssl

        if self.certificate is None:
            return ssl.create_default_context()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(self.certificate)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{self.certificate}: no certificate: {error}",
                remedy="start the deployment again (`dsctl restart`)",
            ) from None
        return context

    def __str__(self) -> str:
        return f"unix:{self.uds}" if self.uds else f"{self.base_url}/v1"


def _bad(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"--endpoint {text}: {why}",
        remedy="e.g. `--endpoint http://127.0.0.1:8000/v1` or `--endpoint unix:/run/engine.sock`",
    )
