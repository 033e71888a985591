"""Whether somebody else's image may be started: only as it was when it was vetted, and found good.

`accepted` decides, pure; `acceptance` reads what it decides from; `startable_image` is the last
gate before a start, which no `--ignore` opens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dsctl.errors import NotGoodError
from dsctl.model.finding import Status
from dsctl.model.profile import Profile
from dsctl.paths import Paths, user_paths
from dsctl.vet.parser import flags_in, serve_argv, surroundings_digest
from dsctl.vet.policy import Policy, policy_file, read_policy
from dsctl.vet.values import Vet
from dsctl.vet.vetfile import VetFileError, read_key, read_vet, vet_path


@dataclass(frozen=True)
class Acceptance:
    """The answer. `image_id`: what may be started, by content; `doubts`: what the vet warned of."""

    accepted: bool
    why: str
    remedy: str = ""
    image_id: str | None = None
    doubts: tuple[str, ...] = ()


def acceptance(profile: Profile, image_ids: Mapping[str, str], paths: Paths) -> Acceptance:
    """Whether the image of an `external` profile may be started; `image_ids`: id by name.

    Raises:
        ConfigError: the policy in force cannot be read.
    """
    image_id = id_of(profile.engine.image or "", image_ids)
    if image_id is None:
        return Acceptance(
            False, f"{profile.engine.image} is not on this machine", _again(profile), None
        )
    policy = read_policy(policy_file(paths))
    try:
        vet = read_vet(vet_path(paths, image_id), read_key(paths))
    except VetFileError as error:
        return Acceptance(False, str(error), _again(profile), image_id)
    return accepted(profile, image_id, vet, policy)


def startable_image(profile: Profile) -> str:
    """The id of an `external` profile's image, which may be started; looked at now.

    Raises:
        NotGoodError: there is none, or no vet lets it start.
        DsctlError: no Docker engine answers.
    """
    from dsctl.vet.daemon import engine, find

    name = profile.engine.image or ""
    with engine("looking for the vetted image") as client:
        image_id = str(find(client, name)["Id"])
    answer = acceptance(profile, {name: image_id}, user_paths())
    if not answer.accepted:
        raise NotGoodError(f"{name} may not be started: {answer.why}", remedy=answer.remedy)
    return image_id


def id_of(name: str, image_ids: Mapping[str, str]) -> str | None:
    """The id of an image by any of its names: tag, digest, or the id itself."""
    if name in image_ids.values():
        return name
    tagged = name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"
    return image_ids.get(name) or image_ids.get(tagged)


def accepted(profile: Profile, image_id: str, vet: Vet, policy: Policy) -> Acceptance:
    """Whether a vet lets a profile start an image. Pure."""

    def refused(why: str, remedy: str = "") -> Acceptance:
        return Acceptance(False, why, remedy or _again(profile), image_id)

    if vet.image_id != image_id:
        return refused(f"the vet is of another image: {vet.image_id}, here is {image_id}")
    pin = (profile.engine.image or "").partition("@")[2]
    if pin and pin not in {d.partition("@")[2] for d in vet.digests}:
        return refused(f"the profile names {pin}, which was not vetted")
    if vet.policy_digest != policy.digest:
        return refused(
            f"the policy has changed since it was vetted (version {vet.policy_version}, now "
            f"{policy.version})"
        )
    if vet.verdict is Status.FAIL:
        return refused(
            f"it was vetted and failed: {'; '.join(vet.reasons[:3])}",
            f"read `dsctl image vet {profile.engine.image} --profile {profile.id}`; take an image "
            "that passes",
        )
    if not vet.runs:
        return refused("it was only read, never run")
    if vet.surroundings != surroundings_digest(profile):
        return refused("the profile's program or environment is not what it was vetted with")
    proved = set(vet.flags.flags) if vet.flags is not None else set()
    unproved = [flag for flag in flags_in(serve_argv(profile)) if flag not in proved]
    if unproved:
        return refused(f"its parser was not asked about {', '.join(unproved[:5])}")
    doubts = vet.reasons if vet.verdict is Status.WARN else ()
    return Acceptance(True, f"vetted {vet.made_at}: {vet.verdict}", "", image_id, doubts)


def _again(profile: Profile) -> str:
    return f"`dsctl image vet {profile.engine.image} --profile {profile.id}`"
