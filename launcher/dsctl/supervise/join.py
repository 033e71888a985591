"""Two `up`s are one deployment: what a second one finds, and what it makes of it."""

from __future__ import annotations

from dsctl.engine.select import engine_for
from dsctl.engine.state import StateDirectory
from dsctl.errors import EngineError, InterruptedByUserError, NotGoodError
from dsctl.model.deployment import Deployment
from dsctl.model.event import Phase
from dsctl.supervise.prepare import AUTO, Request

STOP_GRACE_S = 20.0
_ANSWER_S = 5.0


def existing(
    state: StateDirectory, request: Request, asked_at: float, *, joined_a_start: bool
) -> Deployment | None:
    """The deployment that is up or on its way, if it is the one that is asked for; None to start.

    One that is on its way (`is_mid_start`) has lost its `dsctl up`: it is for the caller to adopt.

    `asked_at`: when this `up` was asked for; `joined_a_start`: another `up` was at work then.

    Raises:
        EngineError: the start that was joined has failed, or what is up does not answer.
        InterruptedByUserError: the start that was joined was cancelled.
        NotGoodError: something else is up.
    """
    deployment = state.read()
    if deployment is None:
        return None
    engine = engine_for(deployment.engine, state)
    if not engine.is_alive(deployment):
        if joined_a_start and deployment.since >= asked_at:
            _tell_how_it_ended(deployment)
        return None
    if not _is_asked_for(deployment, request):
        process = deployment.engine_process
        raise NotGoodError(
            f"a deployment of {deployment.profile} is up (pid {process.pid if process else '?'})",
            remedy="take it down first with `dsctl down`, or use it as it is",
        )
    if not is_mid_start(deployment):
        _must_answer(deployment)
    return deployment


def is_mid_start(deployment: Deployment) -> bool:
    """Whether the record is of a start that has not come to its end."""
    return deployment.is_up and deployment.phase not in (Phase.READY, Phase.STALLED)


def _is_asked_for(deployment: Deployment, request: Request) -> bool:
    named = request.profile in (AUTO, deployment.profile, deployment.requested)
    return named and deployment.overrides == request.overrides


def _tell_how_it_ended(deployment: Deployment) -> None:
    if deployment.phase is Phase.STOPPED:
        raise InterruptedByUserError("the start that this one joined was cancelled")
    if deployment.phase is Phase.FAILED:
        raise EngineError(
            f"the start that this one joined has failed ({deployment.last_cause})",
            remedy="see `dsctl status`, `dsctl logs` and `dsctl diagnose`",
            cause=deployment.last_cause,
        )


def _must_answer(deployment: Deployment) -> None:
    """A process that lives but does not answer is not up."""
    from dsctl.client import Client, RequestError, Target

    try:
        with Client(Target.of(deployment.endpoint), silence_s=_ANSWER_S) as client:
            client.get_text("/v1/models", timeout_s=_ANSWER_S)
    except RequestError as error:
        raise EngineError(
            f"the engine of {deployment.profile} lives but does not answer: {error.message}",
            remedy="see `dsctl logs`; `dsctl restart` starts it again",
            cause="engine.stalled",
        ) from None
