"""The engine's image, for starts in a container."""

from __future__ import annotations

from dsctl.model.facts import Docker, DockerState
from dsctl.preflight.checks.containers import needs_docker
from dsctl.preflight.outcome import Outcome, SkipError, fail, good, warn
from dsctl.preflight.registry import CheckContext, check


def _image(context: CheckContext) -> str:
    """The engine's image: somebody else's as the profile names it, or ours by what goes in."""
    if not needs_docker(context):
        raise SkipError("the engine runs as a plain process, without an image")
    engine = context.profile.engine
    if engine.image is not None:
        return engine.image
    if engine.external:
        raise SkipError("the profile names no image")
    from dsctl.image import image_name

    return image_name(engine.environment)


def _docker(context: CheckContext) -> Docker:
    docker = context.facts.docker
    if docker is None or docker.state is not DockerState.OK:
        raise SkipError("Docker does not answer (see docker.engine)")
    if docker.images is None:
        raise SkipError("the list of images was not recorded")
    return docker


@check("image.present")
def present(context: CheckContext) -> Outcome:
    """Whether the images are on this machine: nothing is pulled while starting."""
    image, docker = _image(context), _docker(context)
    assert docker.images is not None
    if image in (docker.image_ids or {}).values():
        return good(f"{image} is here")
    name = image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest"
    here = name in docker.images or image in docker.images
    engine = context.profile.engine
    if engine.external or engine.image is not None:
        if here:
            return good(f"{image} is here")
        how = f"`docker pull {image}`" if engine.external else "`dsctl image build`"
        return fail(f"{image} is not on this machine", how)
    from dsctl.image import image_name

    gateway = image_name("gateway")
    wanted: dict[str, str] = {engine.environment: image, "gateway": gateway}
    missing = {target: tag for target, tag in wanted.items() if tag not in docker.images}
    if not missing:
        return good(f"{image} and {gateway} are here")
    how = " and ".join(f"`dsctl image build --target {target}`" for target in missing)
    return warn(
        f"{' and '.join(missing.values())} not built yet: `dsctl up` builds, which takes minutes "
        "and a base image",
        f"build ahead: {how}",
    )


@check("image.pins")
def pins(context: CheckContext) -> Outcome:
    """Somebody else's image is named by its digest; ours says by its labels what is in it."""
    image = _image(context)
    if not context.profile.engine.external and context.profile.engine.image is None:
        return _own_pins(context, image)
    pinned = "@sha256:" in image or image.startswith("sha256:")
    if not context.profile.engine.external or pinned:
        return good(f"{image} is {'pinned by digest' if pinned else 'built here'}")
    return fail(
        f"{image} is a tag, which may be another image tomorrow",
        f"pin it: `docker inspect --format '{{{{.Id}}}} {{{{.RepoDigests}}}}' {image}`, write the "
        "digest (of one that was never pulled, the id) into the profile, then `dsctl image vet`",
    )


def _own_pins(context: CheckContext, image: str) -> Outcome:
    """Versions and digests of our image's labels against the profile and what dsctl ships."""
    docker = _docker(context)
    assert docker.images is not None
    if image not in docker.images:
        raise SkipError("it is not built yet (see image.present)")
    if docker.image_labels is None:
        raise SkipError("the labels of the images were not recorded")
    from dsctl.image.names import inputs_of

    engine = context.profile.engine
    inputs = inputs_of(engine.environment)
    expected = {"inputs": inputs.digest, "vllm": engine.version} | {
        f"digest.{part}": digest for part, digest in inputs.parts.items()
    }
    found = docker.image_labels.get(image, {})
    wrong = [
        f"{name} {found.get(f'dsctl.{name}', 'missing')[:12]}, not {value[:12]}"
        for name, value in expected.items()
        if found.get(f"dsctl.{name}") != value
    ]
    if not wrong:
        return good(
            f"{image} has vLLM {found['dsctl.vllm']}, torch {found.get('dsctl.torch')}, runtime "
            f"{found.get('dsctl.runtime')}"
        )
    return fail(
        f"{image} is not what its name says: {wrong[0]}",
        f"build it again: `dsctl image build --target {engine.environment} --again`",
        "\n".join(wrong[1:]),
    )


@check("image.vetted")
def vetted(context: CheckContext) -> Outcome:
    """A third party's image starts only as it was when `dsctl image vet` found it good."""
    from dsctl.vet.accept import acceptance

    image = _image(context)
    if not context.profile.engine.external:
        raise SkipError("the image is our own")
    docker, paths = context.facts.docker, context.paths
    if docker is None or docker.image_ids is None or paths is None:
        raise SkipError("the images and vets of this machine were not recorded")
    answer = acceptance(context.profile, docker.image_ids, paths)
    if answer.image_id is None:
        raise SkipError("there is no image to vet (see image.present)")
    if not answer.accepted:
        return fail(f"{image} may not be started: {answer.why}", answer.remedy)
    if answer.doubts:
        return warn(
            f"{image} was vetted with doubts: {answer.doubts[0]}",
            f"read what they are: `dsctl image vet {image} --profile {context.profile.id}`",
            "\n".join(answer.doubts[1:]),
        )
    return good(f"{image}: {answer.why}")
