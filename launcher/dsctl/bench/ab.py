"""A against B: interleaved, paired, with intervals, for speed and for answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Literal

from dsctl.bench.arms import Arm, served
from dsctl.bench.distribution import DistributionTest, compare_draws
from dsctl.bench.engine_metrics import draft_stats, fetch_counters
from dsctl.bench.figures import decode_rate, merge_drafts, prefill_rate
from dsctl.bench.prompts import PromptMaker, messages
from dsctl.bench.run import Bench
from dsctl.bench.schema import Cell, DraftStats, Round, Spec
from dsctl.client import Client, Completion, RequestError
from dsctl.errors import EngineError
from dsctl.measure.conditions import Conditions
from dsctl.measure.statistics import Interval, paired_ratio
from dsctl.measure.subject import Subject
from dsctl.model.base import Value

#: Short questions with many good continuations: what a draft guesses well and badly.
PROMPTS = (
    "Name one animal and say where it lives.",
    "Continue: The harbour master opened the door and",
    "Write one line of Python that does something useful.",
    "Nenne eine Stadt und einen Grund, sie zu besuchen.",
    "Give a random number between one and a hundred, then a word that rhymes with it.",
    "Invent a name for a boat and explain it.",
)
_CHAT = "/v1/chat/completions"


class AbSpec(Value):
    """How much is measured. `pairs`: interleaved speed pairs; `draws`: per prompt and arm."""

    prefill: int = 512
    decode: int = 128
    depth: int = 0
    concurrency: int = 1
    pairs: int = 8
    draws: int = 60
    draw_tokens: int = 16
    greedy_tokens: int = 64
    alpha: float = 0.01
    seed: int = 0


class Equality(Value):
    """Greedy answers of both arms. `baseline`: A against itself, asked twice: what batching and
    rounding alone do. `diverges_at`: first differing token of each prompt, None where equal."""

    prompts: int
    equal: int
    baseline_equal: int
    diverges_at: tuple[int | None, ...]


class LogprobDistance(Value):
    """Differences of the log-probability of the same tokens of fixed texts."""

    tokens: int
    mean_abs: float
    max_abs: float
    baseline_mean_abs: float


class AbResult(Value):
    """The comparison. Ratios are B over A; above 1, B is faster."""

    kind: Literal["ab"] = "ab"
    spec: AbSpec
    a: Conditions
    b: Conditions
    order: str
    decode: Interval
    prefill: Interval | None
    greedy: Equality
    logprobs: LogprobDistance | None
    distribution: DistributionTest
    draft_a: DraftStats | None
    draft_b: DraftStats | None

    @property
    def answers_differ(self) -> bool:
        """The distribution test found a difference: B does not sample what A samples."""
        return not self.distribution.same


def run_ab(
    arm_a: Arm,
    arm_b: Arm,
    spec: AbSpec,
    *,
    model: str | None = None,
    key_env: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> AbResult:
    """Compare two arms. Running endpoints are interleaved request by request (A B B A …);
    profiles, of which only one may be up, in two rounds each (A B A B), halves of the work in each.
    """
    if arm_a.is_running and arm_b.is_running:
        with ExitStack() as stack:
            a = Probe(stack.enter_context(served(arm_a, model, key_env)), spec)
            b = Probe(stack.enter_context(served(arm_b, model, key_env)), spec)
            order = "".join(
                name for pair in range(spec.pairs) for name in ("AB" if pair % 2 == 0 else "BA")
            )
            for count, name in enumerate(order, start=1):
                say(f"speed {count}/{len(order)}: {name}")
                (a if name == "A" else b).speed()
            for probe, name in ((a, "A"), (b, "B")):
                say(f"answers of {name}")
                probe.answers(0, spec.draws)
            return _compared(a, b, spec, order)
    probes: dict[str, Probe] = {}
    half = max(1, spec.pairs // 2)
    for number, arm in enumerate((arm_a, arm_b, arm_a, arm_b)):
        say(f"arm {arm.name}, round {number // 2 + 1} of 2")
        with served(arm, model, key_env) as subject:
            probe = probes.setdefault(arm.name, Probe(subject, spec))
            probe.subject = subject
            first = number < 2
            for _ in range(half if first else spec.pairs - half):
                probe.speed()
            middle = spec.draws // 2
            probe.answers(0 if first else middle, middle if first else spec.draws)
    return _compared(probes["A"], probes["B"], spec, "ABAB (profiles in turn)")


class Probe:
    """Asks one arm and keeps what it said."""

    def __init__(self, subject: Subject, spec: AbSpec) -> None:
        self.subject, self._spec = subject, spec
        self.rounds: list[Round] = []
        self.greedy: list[list[Completion]] = []
        self.draws: list[list[tuple[str, ...]]] = [[] for _ in PROMPTS]
        self.surprisals: list[list[float]] = [[] for _ in PROMPTS]
        self.logprobs: list[list[float] | None] = []
        self.drafts: list[DraftStats] = []

    def speed(self) -> None:
        """One measured round; both arms get the same prompts in the same order."""
        spec = self._spec
        with Client(self.subject.target) as client:
            serial = spec.seed * 1000 + len(self.rounds)
            maker = PromptMaker(client, self.subject.model, "diverse", serial)
            grid = Spec(prefill=(spec.prefill,), decode=(spec.decode,), runs=1, seed=serial)
            bench = Bench(client, self.subject.model, grid, maker)
            bench.warm_up()
            plan = Cell(
                prefill=spec.prefill,
                decode=spec.decode,
                depth=spec.depth,
                concurrency=spec.concurrency,
                cache="cold",
                rounds=(),
            )
            self.rounds += bench.cell(plan, None).rounds

    def answers(self, first: int, last: int) -> None:
        """Greedy answers, log-probabilities, and draws `first` to `last` of every prompt."""
        spec, model = self._spec, self.subject.model
        with Client(self.subject.target) as client:
            before = fetch_counters(client)
            if first == 0:
                for _ in range(2):
                    self.greedy.append(
                        [
                            client.measure(_CHAT, self._ask(p, spec.greedy_tokens, temperature=0))
                            for p in PROMPTS
                        ]
                    )
                    self.logprobs.append(prompt_logprobs(client, model))
            for index, prompt in enumerate(PROMPTS):
                for draw in range(first, last):
                    ask = self._ask(prompt, spec.draw_tokens, temperature=1, seed=self._seed(draw))
                    done = client.measure(_CHAT, ask)
                    self.draws[index].append(tokens_of(done))
                    if done.logprobs:
                        total = sum(value for _, value, _ in done.logprobs)
                        self.surprisals[index].append(total)
            after = fetch_counters(client)
        if before is not None and after is not None and (stats := draft_stats(before, after)):
            self.drafts.append(stats)

    def _seed(self, draw: int) -> int:
        # Not the same seeds for both arms: equal seeds would couple the draws, and the test
        # supposes that they are independent.
        return hash((self.subject.target.base_url, self._spec.seed, draw, id(self))) % (1 << 31)

    def _ask(self, prompt: str, tokens: int, **params: Any) -> dict[str, Any]:
        return {
            "model": self.subject.model,
            "messages": messages("", prompt),
            "max_tokens": tokens,
            "logprobs": True,
            "return_token_ids": True,
            **params,
        }


def tokens_of(done: Completion) -> tuple[str, ...]:
    """The answer as tokens, as far as the server tells them; else as pieces of the stream."""
    if done.logprobs:
        return tuple(token for token, _, _ in done.logprobs)
    if done.token_ids:
        return tuple(str(token) for token in done.token_ids)
    return tuple(done.text.split())


def prompt_logprobs(client: Client, model: str) -> list[float] | None:
    """Log-probabilities of the tokens of fixed texts; None where the server cannot tell them."""
    from dsctl.bench.corpus import diverse_text

    found: list[float] = []
    for seed in range(3):
        body = {
            "model": model,
            "prompt": diverse_text(1500, seed=seed),
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": 0,
        }
        try:
            answer = client.post_json("/v1/completions", body, timeout_s=300)
            for entry in answer["choices"][0]["prompt_logprobs"]:
                if entry:
                    found += [float(value["logprob"]) for value in list(entry.values())[:1]]
        except (RequestError, KeyError, IndexError, TypeError, ValueError, AttributeError):
            return None
    return found or None


def _compared(a: Probe, b: Probe, spec: AbSpec, order: str) -> AbResult:
    decode = _pairs(a.rounds, b.rounds, decode_rate)
    if not decode:
        raise EngineError("no pair of speed measurements came back", remedy="see `dsctl logs`")
    prefill = _pairs(a.rounds, b.rounds, prefill_rate)
    return AbResult(
        spec=spec,
        a=a.subject.conditions,
        b=b.subject.conditions,
        order=order,
        decode=paired_ratio(*zip(*decode, strict=True), seed=spec.seed),
        prefill=paired_ratio(*zip(*prefill, strict=True), seed=spec.seed) if prefill else None,
        greedy=_equality(a.greedy, b.greedy),
        logprobs=_distance(a.logprobs, b.logprobs),
        distribution=compare_draws(
            a.draws,
            b.draws,
            surprisals=(a.surprisals, b.surprisals),
            alpha=spec.alpha,
            seed=spec.seed,
        ),
        draft_a=merge_drafts(a.drafts),
        draft_b=merge_drafts(b.drafts),
    )


def _pairs(
    a: Sequence[Round], b: Sequence[Round], figure: Callable[[Round], float | None]
) -> list[tuple[float, float]]:
    values = [(figure(x), figure(y)) for x, y in zip(a, b, strict=False)]
    return [(x, y) for x, y in values if x and y]


def _equality(a: list[list[Completion]], b: list[list[Completion]]) -> Equality:
    where = tuple(diverges(tokens_of(x), tokens_of(y)) for x, y in zip(a[0], b[0], strict=True))
    base = [diverges(tokens_of(x), tokens_of(y)) for x, y in zip(a[0], a[1], strict=True)]
    return Equality(
        prompts=len(where),
        equal=where.count(None),
        baseline_equal=base.count(None),
        diverges_at=where,
    )


def diverges(a: Sequence[str], b: Sequence[str]) -> int | None:
    """Index of the first token that differs (the shorter length, if one goes on); None: equal."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def _distance(a: list[list[float] | None], b: list[list[float] | None]) -> LogprobDistance | None:
    first, again, other = a[0], a[1], b[0]
    if first is None or again is None or other is None or len(first) != len(other):
        return None
    deltas = [abs(x - y) for x, y in zip(first, other, strict=True)]
    base = [abs(x - y) for x, y in zip(first, again, strict=True)]
    return LogprobDistance(
        tokens=len(deltas),
        mean_abs=sum(deltas) / len(deltas),
        max_abs=max(deltas),
        baseline_mean_abs=sum(base) / len(base),
    )
