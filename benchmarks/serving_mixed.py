"""Requests of every kind in one running batch, each compared with the same request alone by `generate`.

    python -m benchmarks.serving_mixed --count 100000 --workers 16                  # float64: tokens must be equal
    python -m benchmarks.serving_mixed --count 100000 --workers 16 --dtype float32  # or part where two were within 1e-4

Prompts share beginnings (prefix cache, with little memory), some are longer than what is read between two steps, some
come several times at once (`n`), some are cancelled. A third has no LoRA adapter, the others one of two. Outputs are
greedy, sampled or beams, with penalties, a bias, grammars or none. Jobs pass through the frames that go to a model's
process, and come at random steps. Each 500 requests have a batch and a seed of their own, so the requests do not depend
on the number of workers.
"""

import argparse
import copy
import itertools
import multiprocessing
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast, final

import torch

from benchmarks.differences import Tally, compare
from clearhead.decoding import Beam, Greedy, Rules, Sample
from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.grammar import Grammar, TokenBytes, json_grammar
from clearhead.decoding.prefix_cache import PrefixCache
from clearhead.decoding.request import Model
from clearhead.decoding.scheduler import Finished, Job
from clearhead.extras import has_package
from clearhead.model import presets
from clearhead.model.lora import AdaptedLinear, Lora, add_adapters, share_adapters
from clearhead.serve.api.model_process import Frames, pack

WORDS = ("the ", "cat", "dog", '{"', '": ', "true", "false", "12", "], ", "null")
TOKENS = TokenBytes(lambda: [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS])
VOCABULARY, END = 256 + len(WORDS), 10
SLOTS, BLOCK, AT_ONCE, LONGEST = 12, 16, 48, 150
A_BATCH = 500
LORAS = (Lora(rank=2, maps=("query", "value")), Lora(rank=4, maps=("all",)))
SCHEMA = {
    "type": "object",
    "properties": {"cat": {"type": "boolean"}, "dog": {"enum": ["12", "null"]}},
    "required": ["cat"],
    "additionalProperties": False,
}


def make_models(dtype: torch.dtype) -> tuple[Model, list[Model]]:
    """Return a model with shared adapters, and the model without any and with each of them alone."""
    torch.manual_seed(0)
    model = presets.llama(presets.Size(2, 32, 4, 2, 64), vocabulary=VOCABULARY).build().to(dtype).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=1.5 * parameter.shape[-1] ** -0.5)
    adapted = [add_adapters(copy.deepcopy(model), lora) for lora in LORAS]
    for module in itertools.chain.from_iterable(other.modules() for other in adapted):
        if isinstance(module, AdaptedLinear):
            torch.nn.init.normal_(module.adapter_up, std=0.3)
    shared = copy.deepcopy(model)
    share_adapters(shared, adapted)
    return shared, [model, *(cast(Model, other) for other in adapted)]


@final
class Requests:
    """Requests at random, the same of the same seed: each as many jobs with one prompt."""

    def __init__(self, seed: int, *, grammars: bool) -> None:
        self.draw = random.Random(seed)
        self.beginnings = [self.tokens(LONGEST) for _ in range(4)]
        self.grammars: list[Grammar | None] = [None]
        if grammars:
            self.grammars += [json_grammar(SCHEMA, TOKENS), Grammar("regex", "[0-9]{2,4}-(cat|dog)*", TOKENS)]

    def tokens(self, count: int) -> list[int]:
        return [self.draw.randrange(VOCABULARY) for _ in range(count)]

    def __iter__(self) -> Iterator[list[Job]]:
        while True:
            draw = self.draw
            shared = draw.choice(self.beginnings)[: draw.choice((0, 0, 20, 70, LONGEST))]
            rules, method = self.rules(), draw.choice((Greedy(), Greedy(), Sample(), Sample(top_k=20, top_p=0.9)))
            if rules.grammar is None and draw.random() < 0.1:
                method = Beam(width=draw.randint(2, 3))
            inputs, seed = (*shared, *self.tokens(draw.randint(1, 40))), draw.randrange(1000)
            jobs, adapter = draw.choice((1, 1, 1, 3)), draw.randrange(1 + len(LORAS))
            yield [
                Job(
                    inputs=inputs,
                    rules=rules,
                    method=replace(method, seeds=seed + i) if isinstance(method, Sample) else method,
                    adapter=adapter,
                )
                for i in range(jobs)
            ]

    def rules(self) -> Rules:
        draw = self.draw
        rules = Rules(max_new=draw.randint(1, 12), end=draw.choice(((), (END,))))
        return replace(
            rules,
            presence_penalty=draw.choice((0.0, 0.0, 0.5)),
            frequency_penalty=draw.choice((0.0, 0.0, 0.3)),
            repetition_penalty=draw.choice((1.0, 1.0, 1.2)),
            logit_bias=draw.choice(((), ((5, 2.0), (7, -100.0)))),
            grammar=draw.choice((None, *self.grammars)),
        )


def through_frames(job: Job) -> Job:
    """Return the job as a model's process gets it: its grammar without the tokens."""
    [frame] = Frames().take(pack({"job": job}))
    return frame["job"]


Result = tuple[Tally, Counter[str], list[str], list[str]]
"""How results compare, what happened, and what was different, or a tie."""


def run(count: int, dtype: torch.dtype, seed: int, *, grammars: bool) -> Result:
    """Compare so many requests in one batch with the same requests alone."""
    model, alone = make_models(dtype)
    batch = ContinuousBatch(
        model,
        slots=SLOTS,
        columns=256,
        prompt_tokens=AT_ONCE,
        prefixes=PrefixCache(200_000 * dtype.itemsize, BLOCK),
        tokens=TOKENS,
    )
    requests = itertools.chain.from_iterable(Requests(seed, grammars=grammars))
    draw, tally, facts = random.Random(seed + 1), Tally(), Counter[str]()
    different, ties = list[str](), list[str]()
    running: dict[int, Job] = {}
    while facts["requests"] < count:
        while facts["requests"] + len(running) < count and batch.waiting < SLOTS and draw.random() < 0.6:
            job = next(requests)
            running[batch.add(through_frames(job))] = job
        for ticket in [ticket for ticket in running if draw.random() < 0.001]:
            batch.cancel(ticket)
            del running[ticket]
            facts["cancelled"] += 1
        for event in batch.step():
            if isinstance(event, Finished):
                job = running.pop(event.ticket)
                comparison = compare(alone[job.adapter], job, event.hypotheses)
                tally.add(comparison)
                facts.update(kinds_of(job))
                if comparison.verdict == "different":
                    different.append(f"{job} {comparison}")
                elif comparison.verdict == "tie":
                    method, place = type(job.method).__name__, comparison.place
                    ties.append(f"tie: {method}, at token {place} two choices were {comparison.gap:.1e} apart")
    facts["tokens of prompts read"] = batch.counts.prompt_tokens
    facts["tokens of prompts shared"] = batch.counts.shared_tokens
    facts["steps"] = batch.counts.steps
    return tally, facts, different, ties


def kinds_of(job: Job) -> Counter[str]:
    """Return what a request counts as."""
    rules = job.rules
    kinds: dict[str, Any] = {
        "requests": True,
        "longer than a piece": len(job.inputs) - 1 > AT_ONCE,
        "with a grammar": rules.grammar is not None,
        "with penalties or a bias": rules.changes_logits,
        "with an adapter": job.adapter > 0,
        "beams": isinstance(job.method, Beam),
        "sampled": isinstance(job.method, Sample),
    }
    return Counter(kind for kind, holds in kinds.items() if holds)


def run_batch(batch: tuple[int, int], *, dtype: str, grammars: bool) -> Result:
    """Run a batch of (seed, count) in a worker."""
    torch.set_num_threads(1)
    seed, count = batch
    return run(count, getattr(torch, dtype), seed, grammars=grammars)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    grammars = has_package("llguidance")
    starts = range(0, options.count, A_BATCH)
    batches = [(options.seed + start, min(A_BATCH, options.count - start)) for start in starts]
    tally, facts = Tally(), Counter[str]()
    different, ties = list[str](), list[str]()
    with multiprocessing.get_context("spawn").Pool(options.workers) as workers:
        one_batch = partial(run_batch, dtype=options.dtype, grammars=grammars)
        for part, part_facts, part_different, part_ties in workers.imap_unordered(one_batch, batches):
            tally.join(part)
            facts.update(part_facts)
            different += part_different
            ties += part_ties
    print("\n".join(f"{number:>11,}  {kind}" for kind, number in facts.items()))
    if not grammars:
        print("without grammars: llguidance is not installed")
    print("\n".join([*different[:5], *ties]))
    print(f"{options.dtype}, {facts['requests']:,} requests, each compared with the same alone: {tally}")
    if different or (options.dtype == "float64" and tally.counts["tie"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
