"""Images: fetched with a network, built without one, found again by what went into them.

For those who run them:

- `image_name(target)` is the name of the image that this dsctl builds, `dsctl/engine-cpu:<12 hex>`;
  pure over shipped files. The digits are a digest of everything that goes in: both locks, the
  Dockerfile and what it copies, the runtime. Targets: `cpu`, `cuda`, `gateway`.
- `find_image(target)` is that image if the Docker engine has it, `ensure_image(target, report=…)`
  builds it when it has not.

Engine images. Arguments are those of `vllm serve`, the model first. uid and gid 10001 (`dsctl`),
umask 0007, so the socket in `/run/engine` (0750) is for the group. `/model` and `/packs` are mount
points, `/cache` is the one place that is written: below it one tree per image and device, `triton
inductor flashinfer deepgemm tilelang cute cuda vllm hf …`, named in the engine's environment by the
entrypoint unless already set. Everything else may be read-only; `/tmp` wants a tmpfs.

Gateway image. nginx as uid 10002 in the group 10001, `/run/engine/engine.sock` upstream. Port 8000
is the API behind keys, 8001 `/health` and `/metrics` for the host alone. Argument: the
configuration, `/etc/gateway/http.conf` (default) or `/etc/gateway/https.conf` with `tls.crt` and
`tls.key` in `/etc/gateway/tls`. `/etc/gateway/keys/keys` has one line per key: `NAME SHA256HEX`; it
is read on every request, so that replacing it in its directory rotates keys without a reload.
`/etc/gateway/limits.conf` may be mounted over; SIGHUP makes nginx read it and the certificate anew.
"""

from __future__ import annotations

from dsctl.image.names import ImageRef, Target, image_name

__all__ = ["ImageRef", "Target", "ensure_image", "find_image", "image_name"]


def find_image(target: Target) -> ImageRef | None:
    """The image of what this dsctl ships, if the Docker engine has it.

    Raises:
        ConfigError: no Docker engine answers.
    """
    from dsctl.image.ensure import find_image as find

    return find(target)


def __getattr__(name: str) -> object:
    if name == "ensure_image":
        from dsctl.image.ensure import ensure_image

        return ensure_image
    raise AttributeError(name)
