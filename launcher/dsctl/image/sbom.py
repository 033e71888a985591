"""The software bill of materials of an image: CycloneDX 1.6 JSON, the same for the same inputs."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dsctl.image.recipe import BUILD_ONLY, Recipe, runtime_version

if TYPE_CHECKING:
    from cyclonedx.model.component import Component

#: Time of every file in our images, and of this document: 2026-01-01. It only has to be the same.
SOURCE_DATE_EPOCH = 1767225600


def sbom(made: Recipe, digests: Mapping[str, str] | None = None) -> str:
    """What the image of this recipe consists of; `digests` has the wheels' sha256 by distribution,
    where they are known (a lock has several for each release)."""
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    image = Component(
        name=made.inputs.name.partition(":")[0],
        version=made.inputs.digest[:12],
        type=ComponentType.CONTAINER,
        bom_ref="image",
    )
    parts = [*_debian(made), *_wheels(made, digests or {}), *_ours(made)]
    bom = Bom(
        components=parts,
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"dsctl:{made.inputs.digest}"),
        metadata=BomMetaData(
            component=image, timestamp=datetime.fromtimestamp(SOURCE_DATE_EPOCH, UTC)
        ),
    )
    bom.register_dependency(image, parts)
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _debian(made: Recipe) -> list[Component]:
    return [
        _component(
            deb.name,
            deb.version,
            kind="deb",
            namespace="debian",
            qualifiers={"arch": "amd64", "distro": "debian-12"},
            sha256=deb.sha256,
        )
        for deb in made.debs.image
    ]


def _wheels(made: Recipe, digests: Mapping[str, str]) -> list[Component]:
    return [
        _component(name, version, kind="pypi", sha256=digests.get(name))
        for name, version in sorted(made.versions.items())
        if name not in BUILD_ONLY
    ]


def _ours(made: Recipe) -> list[Component]:
    if made.engine is None:
        return []
    return [_component("dsruntime", runtime_version(), kind="generic")]


def _component(
    name: str,
    version: str,
    *,
    kind: str,
    namespace: str | None = None,
    qualifiers: dict[str, str] | None = None,
    sha256: str | None = None,
) -> Component:
    from cyclonedx.model import HashAlgorithm, HashType
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    purl = PackageURL(kind, namespace, name, version, qualifiers)
    hashes = [HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else []
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=str(purl),
        hashes=hashes,
    )
