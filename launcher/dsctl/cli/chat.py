"""`dsctl chat`: one streamed answer from the running deployment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsctl.cli.output import note

if TYPE_CHECKING:
    from dsctl.client import Completion, Event


def chat(
    prompt: Annotated[
        str | None, typer.Argument(help="The question; without it, it is read from stdin.")
    ] = None,
    thinking: Annotated[
        bool, typer.Option("--thinking/--no-thinking", help="Let the model think first.")
    ] = False,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1)] = 1024,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", min=0.0, help="Default: what the model's author set."),
    ] = None,
) -> None:
    """Ask the running deployment one question; the answer streams to stdout."""
    import sys

    from dsctl.client import Client, Target
    from dsctl.errors import ConfigError, EngineError
    from dsctl.model.event import Phase
    from dsctl.paths import user_paths
    from dsctl.supervise.operate import running

    question = prompt if prompt is not None else sys.stdin.buffer.read().decode(errors="replace")
    if not question.strip():
        raise ConfigError("there is no question", remedy="e.g. `dsctl chat 'Who are you?'`")
    try:
        question.encode()
    except UnicodeEncodeError:
        raise ConfigError("the question is not UTF-8 text", remedy="send text") from None
    deployment, _ = running(user_paths())
    if deployment.phase is not Phase.READY:
        note(f"(the deployment is not ready yet: {deployment.phase})")
    params: dict[str, Any] = {
        "max_tokens": max_tokens,
        "chat_template_kwargs": {"thinking": thinking},
    }
    if temperature is not None:
        params["temperature"] = temperature
    messages = [{"role": "user", "content": question}]
    with Client(Target.of(deployment.endpoint)) as client:
        answer = client.chat(messages, model=deployment.model, watch=_Printer().show, **params)
    if answer.text:
        sys.stdout.write("\n")
    if answer.failure is not None and 400 <= (answer.failure.status or 0) < 500:
        raise ConfigError(
            f"the server refused the question: {answer.failure.message}",
            remedy="ask something shorter, or give a smaller --max-tokens",
        )
    if answer.failure is not None:
        raise EngineError(
            f"the deployment gave no whole answer: {answer.failure.message}",
            remedy="see `dsctl status` and `dsctl logs`",
        )
    _say_speed(answer)


class _Printer:
    """Visible text on stdout, reasoning on stderr, each as it comes."""

    def __init__(self) -> None:
        self._thinking = False

    def show(self, event: Event) -> None:
        """Print one event."""
        import sys

        from dsctl.client import Reasoning, Text

        if isinstance(event, Reasoning):
            sys.stderr.write(event.text)
            sys.stderr.flush()
            self._thinking = True
        elif isinstance(event, Text):
            if self._thinking:
                note("")
                self._thinking = False
            sys.stdout.write(event.text)
            sys.stdout.flush()


def _say_speed(answer: Completion) -> None:
    if answer.ttft_s is None:
        note("(an empty answer)")
        return
    text = f"first token after {answer.ttft_s:.2f} s"
    if answer.decode_tok_s is not None:
        text += f", then {answer.decode_tok_s:.1f} tok/s"
    end = " (cut off at --max-tokens)" if answer.finish_reason == "length" else ""
    note(f"({text}; {answer.tokens} tokens in {answer.total_s:.1f} s){end}")
