"""Vet files: one per image, sealed with a key that only this user has."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from pathlib import Path

from pydantic import ValidationError

from dsctl.errors import ConfigError
from dsctl.files import write_atomically
from dsctl.paths import Paths, make_writable
from dsctl.vet.values import VET_SCHEMA, Vet

_KEY_BYTES = 32


class VetFileError(Exception):
    """A vet file that says nothing one could rely on; the message says why."""


def vet_path(paths: Paths, image_id: str) -> Path:
    """Where the verdict on an image is kept."""
    return paths.data / "vets" / f"{image_id.removeprefix('sha256:')}.json"


def seal(vet: Vet, key: bytes) -> Vet:
    """The vet with the seal that proves it unchanged."""
    return vet.model_copy(update={"seal": seal_of(vet, key)})


def write_vet(path: Path, vet: Vet) -> None:
    """Write a sealed vet.

    Raises:
        ConfigError: the directory cannot be written, or the disk is full.
    """
    make_writable(path.parent, "vet")
    write_atomically(path, vet.model_dump_json(indent=2, by_alias=True) + "\n")


def read_vet(path: Path, key: bytes | None) -> Vet:
    """Read and prove the seal.

    Raises:
        VetFileError: not there, torn, of another version, or not as it was written.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise VetFileError("it was never vetted here") from None
    except (OSError, UnicodeDecodeError) as error:
        raise VetFileError(f"{path} cannot be read: {error}") from None
    try:
        document = json.loads(text)
        version = document.get("schema") if isinstance(document, dict) else None
        if version != VET_SCHEMA:
            raise VetFileError(f"{path} is of another version of dsctl (schema {version})")
        vet = Vet.model_validate(document)
    except (ValueError, ValidationError):
        raise VetFileError(f"{path} is no vet file any more: torn or edited") from None
    if key is None or not hmac.compare_digest(vet.seal, seal_of(vet, key)):
        raise VetFileError(f"{path} is not as it was written here: edited, or of another user")
    return vet


def seal_of(vet: Vet, key: bytes) -> str:
    """HMAC-SHA256 over everything but the seal, in one canonical form."""
    content = vet.model_dump(mode="json", by_alias=True, exclude={"seal"})
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return "hmac-sha256:" + hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def read_key(paths: Paths) -> bytes | None:
    """This user's key; None where nothing was ever vetted."""
    try:
        key = bytes.fromhex(_key_file(paths).read_text())
    except (OSError, ValueError):
        return None
    return key if len(key) == _KEY_BYTES else None


def ensure_key(paths: Paths) -> bytes:
    """This user's key, made at first use (mode 0600).

    Raises:
        ConfigError: it cannot be kept.
    """
    key = read_key(paths)
    if key is None:
        file = _key_file(paths)
        if file.exists():
            raise ConfigError(
                f"{file} is no key any more, so no vet file can be trusted",
                remedy=f"remove {file}, and vet your images again",
            )
        make_writable(file.parent, "configuration")
        key = secrets.token_bytes(_KEY_BYTES)
        write_atomically(file, key.hex() + "\n", mode=0o600)
    return key


def _key_file(paths: Paths) -> Path:
    return paths.config / "vet.key"
