"""What a start in containers needs: images, keys, and the deck with this machine's values."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dsctl.compose import policy
from dsctl.compose.deck import Places, deck_of, needs_pack
from dsctl.engine.base import EngineCommand
from dsctl.engine.docker import LABEL, project_of
from dsctl.engine.state import StateDirectory
from dsctl.errors import ConfigError, NotGoodError
from dsctl.files import write_atomically
from dsctl.keys import ApiKey, KeyFile, publish
from dsctl.model.endpoint import Endpoint
from dsctl.paths import Paths, shipped
from dsctl.planning.cards import chosen

if TYPE_CHECKING:
    from dsctl.model.facts import Facts
    from dsctl.model.profile import Profile
    from dsctl.progress import Progress

Report = Callable[["Progress"], None]


@dataclass(frozen=True)
class Images:
    """Names of the two images."""

    engine: str
    gateway: str


def container_command(
    profile: Profile,
    *,
    endpoint: Endpoint,
    checkpoint: Path,
    facts: Facts,
    images: Images,
    paths: Paths,
) -> EngineCommand:
    """The deck of a profile with this machine's values, as a command: the image, its arguments.

    Nothing is made yet.

    Raises:
        ConfigError, NotGoodError: the model, the packs or the cards are not there.
    """
    project = project_of(StateDirectory(paths.deployment))
    model, inside = mounted_checkpoint(_directory(checkpoint, "checkpoint", profile), profile)
    deck = deck_of(
        profile,
        Places(
            engine_image=images.engine,
            gateway_image=images.gateway,
            model=str(model),
            model_inside=inside,
            pack=_pack(profile),
            tls=str(paths.gateway_tls) if profile.value("tls_dir") else None,
            keys=str(paths.gateway_keys),
            hardening=str(shipped("hardening")),
            bind=profile.value("bind", endpoint.host),
            port=str(endpoint.port),
            monitor_port="0",
            gpus=cards(profile, facts),
            labels=((LABEL, project),),
            network=f"{project}-front",
            run_volume=f"{project}-run",
            cache_volume=f"{project}-cache",
        ),
    )
    argv = (images.engine, *deck.engine.entrypoint, *deck.engine.command)
    return EngineCommand(argv=argv, env=deck.engine.env, deck=deck)


def ensure_images(profile: Profile, report: Report) -> Images:
    """Both images, built now where they are missing.

    Raises:
        DsctlError: one cannot be had.
    """
    from dsctl.image.ensure import ensure_image

    if profile.engine.external:
        from dsctl.vet.accept import startable_image

        vetted = startable_image(profile)  # by content: a tag may have moved since the checks
        return Images(vetted, ensure_image("gateway", report=report).tag)
    gateway = ensure_image("gateway", report=report)
    engine = ensure_image(profile.engine.environment, report=report)
    return Images(engine.tag, gateway.tag)


def named_images(profile: Profile) -> Images:
    """The images by name, whether they are there or not."""
    from dsctl.image import image_name

    if profile.engine.external:
        return Images(profile.engine.image or "", image_name("gateway"))
    return Images(image_name(profile.engine.environment), image_name("gateway"))


def ensure_access(profile: Profile, paths: Paths) -> tuple[ApiKey, bool]:
    """The key that dsctl uses and whether it is new.

    The gateway gets the digests of all keys, and the certificate where there is one, in directories
    that its user may read, below one that only we may enter.

    Raises:
        ConfigError: the certificate or its key is missing, or they do not belong together.
    """
    paths.gateway_keys.parent.mkdir(parents=True, exist_ok=True)
    paths.gateway_keys.parent.chmod(0o700)
    if profile.value("tls_dir"):
        publish_certificate(Path(profile.value("tls_dir")).expanduser(), paths.gateway_tls)
    file = KeyFile(paths.api_keys)
    key, new = file.ensure()
    publish(file.read(), paths.gateway_keys)
    return key, new


def publish_certificate(source: Path, target: Path) -> None:
    """Copy `tls.crt` and `tls.key` to where the gateway reads them, once they are good.

    Raises:
        ConfigError: names the file.
    """
    import ssl

    certificate, key = source / "tls.crt", source / "tls.key"
    for path in (certificate, key):
        if not path.is_file():
            raise ConfigError(
                f"key 'tls_dir': {path} is missing",
                remedy="give a directory with tls.crt (the whole chain) and tls.key",
            )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"key 'tls_dir': {certificate} and {key.name} are no pair that can be used: {error}",
            remedy="give the PEM certificate and its key without a password",
        ) from None
    target.mkdir(parents=True, exist_ok=True)
    target.chmod(0o755)
    for path in (certificate, key):
        write_atomically(target / path.name, path.read_text(), mode=0o644)


def guarded(endpoint: Endpoint, profile: Profile, paths: Paths) -> Endpoint:
    """The endpoint as it is behind the gateway: the address to ask at, and its key.

    Raises:
        ConfigError: knob `bind` is no address.
    """
    bind = profile.value("bind", endpoint.host)
    try:
        address = ipaddress.ip_address(bind)
    except ValueError:
        raise ConfigError(
            f"profile {profile.id}, key 'bind': {bind!r} is no IP address",
            remedy="give one of this machine's addresses, or 0.0.0.0 for all of them",
        ) from None
    host = "127.0.0.1" if address.is_unspecified else str(address)
    certificate = paths.gateway_tls / "tls.crt" if profile.value("tls_dir") else None
    return endpoint.model_copy(
        update={
            "host": host,
            "key_file": str(paths.api_keys),
            "certificate": str(certificate) if certificate else None,
        }
    )


def refuse_open_process(profile: Profile) -> None:
    """A plain process has no key and no limits: it is not offered to a network.

    Raises:
        ConfigError: knob `bind` asks for it.
    """
    bind = profile.value("bind", "127.0.0.1")
    if bind not in ("127.0.0.1", "::1", "localhost"):
        raise ConfigError(
            f"profile {profile.id}, key 'bind': a process has no key, it stays on loopback",
            remedy="run it behind the gateway: `dsctl up --engine docker`",
        )


def cards(profile: Profile, facts: Facts) -> tuple[str, ...]:
    """UUIDs of the cards the engine gets: as many as the profile needs.

    Raises:
        NotGoodError: there are not so many.
    """
    need = profile.hardware.gpus
    if not need:
        return ()
    uuids = tuple(gpu.uuid for gpu in chosen(profile.hardware, facts.gpus) if gpu.uuid)
    if len(uuids) < need:
        raise NotGoodError(
            f"profile {profile.id} needs {need} cards, the driver names {len(uuids)}",
            remedy="`nvidia-smi -L` lists them; `dsctl preflight` says what is wrong",
        )
    return uuids


def mounted_checkpoint(checkpoint: Path, profile: Profile) -> tuple[Path, str]:
    """What is mounted at /model, and where the checkpoint is in there.

    A checkpoint in the hub's cache is a directory of links to its neighbours: all of its repository
    is mounted, and nothing above it.

    Raises:
        ConfigError: a file is a link that leads elsewhere.
    """
    repository = checkpoint.parent.parent
    in_hub = checkpoint.parent.name == "snapshots" and repository.name.startswith("models--")
    root = repository if in_hub else checkpoint
    for path in sorted(checkpoint.iterdir()):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise ConfigError(
                f"profile {profile.id}, key 'checkpoint': {path} is a link out of {root}, which "
                "the container would not see",
                remedy="put the file itself there (`cp --dereference`)",
            )
    return root, str(Path(policy.MODEL, checkpoint.relative_to(root)))


def _pack(profile: Profile) -> str | None:
    if not needs_pack(profile):
        return None
    named = profile.value("pack_dir")
    if not named:
        raise ConfigError(
            f"profile {profile.id}: key 'pack_dir' is not set",
            remedy="build a pack (`dsctl pack build`) and give it: `--set pack_dir=DIR`",
        )
    return str(_directory(Path(named).expanduser(), "pack_dir", profile))


def _directory(path: Path, key: str, profile: Profile) -> Path:
    resolved = path.resolve()
    if not resolved.is_dir():
        raise ConfigError(
            f"profile {profile.id}, key {key!r}: {path} is no directory",
            remedy=f"give the directory: `--set {key}=DIR`",
        )
    return resolved
