"""What a run of many replicas asks of the log: the sums, and what the processes of the benchmark need to know to do it.

requests in flight × tokens a second each ÷ tokens of an answer = answers a second
                                                                   └▶ entries, mirrored entries, payloads: a second, and bytes of each
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random

from bus.blobs import blob_digest, blob_ref
from bus.entry import Draft, Producer
from bus.events import BatchFormed, Event, GenerationFinished, GenerationRequested, SampleReady, SampleStarted, StepDone
from bus.keys import Keys
from bus.stream import Client
from services.payloads import answer_blob, sample_blob
from services.samples import Answer, PartialAnswer, SampleGroup, VersionSpan, pack_answer, pack_group, pack_tokens

RUN = "scale"
PAYLOADS = 64
"""Different ones of each kind; more would only cost memory."""
VOCABULARY = 150_000
BYTES_A_TOKEN = 8.0
"""Of a payload: the token and its log-probability."""
CONNECTIONS = 5
"""Of a replica."""


@dataclass(frozen=True, slots=True)
class Load:
    """A run, as far as the server notices. Replicas have `slots` requests in flight each, all the time."""

    replicas: int = 1_000
    slots: int = 64
    tokens_per_s: float = 40.0
    """Of each request in flight."""
    shortest: int = 1_000
    longest: int = 4_000
    """Tokens of an answer, evenly spread in between."""
    answers: int = 8
    """Of a sample."""
    prompt: int = 512
    step_samples: int = 256
    cycle_steps: int = 4

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"r{number}" for number in range(self.replicas))

    @property
    def mean_tokens(self) -> float:
        return (self.shortest + self.longest) / 2

    @property
    def answers_per_s(self) -> float:
        return self.replicas * self.slots * self.tokens_per_s / self.mean_tokens

    @property
    def samples_per_s(self) -> float:
        return self.answers_per_s / self.answers

    @property
    def cycle_s(self) -> float:
        return self.step_samples * self.cycle_steps / self.samples_per_s

    def entries_per_s(self) -> dict[str, float]:
        """By kind. Mirrored ones are once more in an inbox."""
        steps = self.samples_per_s / self.step_samples
        each_replica = self.replicas / self.cycle_s
        return {
            "GenerationRequested": self.answers_per_s,
            "GenerationFinished": self.answers_per_s,
            "SampleStarted": self.samples_per_s,
            "SampleReady": self.samples_per_s,
            "WeightUpdateRequested": each_replica,
            "WeightsApplied": each_replica,
            "BatchFormed, StepDone": 2 * steps,
            "WeightsPublished, CheckpointSaved": 2 / self.cycle_s,
        }

    def json(self) -> str:
        return json.dumps(asdict(self))


def load_of(text: str) -> Load:
    """What `Load.json` gave."""
    return Load(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Payloads:
    """Tokens and log-probabilities as replicas and rollouter pack them."""

    prompts: tuple[bytes, ...]
    answers: tuple[tuple[int, bytes], ...]
    """(tokens, payload)"""
    samples: tuple[bytes, ...]

    @classmethod
    def of(cls, load: Load) -> Payloads:
        """The same ones in each process."""
        random = Random(1)

        def tokens(count: int) -> tuple[int, ...]:
            return tuple(random.randrange(VOCABULARY) for _ in range(count))

        answers = []
        for number in range(PAYLOADS):
            # Evenly spread, so that their mean is the one that the sums reckon with.
            length = round(load.shortest + (number + 0.5) / PAYLOADS * (load.longest - load.shortest))
            logprobs = tuple(-random.expovariate(2.0) for _ in range(length))
            answers.append(PartialAnswer(tokens(length), logprobs, (VersionSpan(0, length),)))
        prompts = [tokens(load.prompt) for _ in range(PAYLOADS)]
        samples = []
        for number, prompt in enumerate(prompts):
            some = [answers[(number + other * PAYLOADS // load.answers) % PAYLOADS] for other in range(load.answers)]
            group = tuple(Answer(answer.tokens, answer.logprobs, answer.spans, "stop", 1.0) for answer in some)
            samples.append(pack_group(SampleGroup(number, prompt, group)))
        return cls(
            tuple(pack_tokens(prompt) for prompt in prompts),
            tuple((len(answer.tokens), pack_answer(answer)) for answer in answers),
            tuple(samples),
        )


def stored(data: bytes) -> bytes:
    """A payload as it lies on the server."""
    return bytes.fromhex(blob_digest(data)) + data


def example_events(load: Load, payloads: Payloads) -> Sequence[Event]:
    """One of each of those that make up the log."""
    tokens, answer = payloads.answers[0]
    request, sample = "100000.0", 100_000
    return (
        GenerationRequested(
            request=request, attempt=1, replica="r500", epoch=1, swing=0, sample=sample, answer=0, max_new_tokens=load.longest
        ),
        GenerationFinished(
            request=request, attempt=1, replica="r500", outcome="stop", num_tokens=tokens, version_spans=((9, tokens),),
            blob=blob_ref(answer_blob(request, 1), answer),
        ),
        SampleStarted(sample=sample, version=9),
        SampleReady(
            sample=sample, num_tokens=tokens * load.answers, oldest_version=8, newest_version=9, mean_reward=0.5,
            blob=blob_ref(sample_blob(sample), payloads.samples[0]),
        ),
        BatchFormed(step=9, samples=tuple(range(sample, sample + load.step_samples)), micro_batches=(tuple(range(load.step_samples)),)),
        StepDone(step=9, version=9, is_boundary=True, num_samples=load.step_samples, seconds={"train": 1.0}, metrics={"loss": 0.5}),
    )  # fmt: skip


def bytes_of(event: Event) -> int:
    """What an entry takes on its way to the server, without what is sent once an append."""
    client = Client(Keys(RUN), "0" * 32, "0" * 32)
    _, arguments = client.append("append", 10**6, Producer("replica:r500", 1), [Draft(event, False, 10**6, 10**18)], 1)
    return sum(len(argument if isinstance(argument, bytes) else str(argument).encode()) for argument in arguments[-7:])


CYCLE_S = 64.0
"""Of a run whose trainer keeps up with its replicas, for the sums; the benchmark's are shorter, so that it reaches its level sooner."""
CYCLE_STEPS = 4
READERS = 5
"""Of the whole log: trainer, rollouter, controller, policy, archiver."""
KEPT_CYCLES = 3
"""Of which samples stay on the server: those since the oldest of the three newest checkpoints, and the cycle that runs."""
MODEL_GB = 16.0
"""8 billion parameters in bfloat16."""


def sums(replicas: int) -> dict[str, float]:
    """What a run of so many replicas asks for, a second; MB are 10**6 bytes."""
    load = Load(replicas=replicas)
    step = round(load.samples_per_s * CYCLE_S / CYCLE_STEPS)
    load = Load(replicas=replicas, step_samples=max(1, step), cycle_steps=CYCLE_STEPS)
    payloads = Payloads.of(load)
    sizes = {event.kind: bytes_of(event) for event in example_events(load, payloads)}
    per_answer = sizes["GenerationRequested"] + sizes["GenerationFinished"]
    per_sample = sizes["SampleStarted"] + sizes["SampleReady"]
    log_mb = (load.answers_per_s * per_answer + load.samples_per_s * per_sample) / 1e6
    answer_mb, sample_mb = load.mean_tokens * BYTES_A_TOKEN / 1e6, load.answers * load.mean_tokens * BYTES_A_TOKEN / 1e6
    stored_mb = load.answers_per_s * answer_mb + load.samples_per_s * sample_mb
    return {
        "answers": load.answers_per_s,
        "entries": sum(load.entries_per_s().values()),
        "log MB in": log_mb,
        "log MB out": READERS * log_mb + load.answers_per_s * sizes["GenerationRequested"] / 1e6,
        "payload MB in": stored_mb,
        "payload MB out": 2 * stored_mb,
        "payloads kept, GB": (KEPT_CYCLES + 1) * CYCLE_S * load.samples_per_s * sample_mb / 1e3,
        "weights GB": replicas * MODEL_GB / CYCLE_S,
        "connections": replicas * CONNECTIONS,
    }


def main() -> None:
    """Prints the sums."""
    table = {replicas: sums(replicas) for replicas in (8, 32, 1_000, 10_000)}
    for name in table[8]:
        print(f"{name:<20}" + "".join(f"{found[name]:>12,.2f}" for found in table.values()))


if __name__ == "__main__":
    main()
