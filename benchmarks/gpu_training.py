"""Measure training steps on a GPU: the base encoder-decoder and GPT-2, and plain PyTorch compiled as their peer."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_figure import Figure, clean, milliseconds
from benchmarks.in_turn import Job
from benchmarks.plain import PlainGPT2, PlainTransformer, training_step
from clearhead.model import presets
from clearhead.training.recipe import Machine, Optimizer
from clearhead.training.tasks import Generate, Task, Translate
from clearhead.training.train_step import TrainState

GPT2_VOCABULARY, BASE_VOCABULARY, QWEN_VOCABULARY = 50_304, 32_768, 151_936


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training step to measure: Clearhead's own, and the peer's, made when it is called."""

    work: str
    spec: Any
    task: Task
    batch: dict[str, Tensor]
    peer: Callable[[], Callable[[], object]] | None = None
    """None if no peer of this shape is on the machine."""
    peer_name: str = ""

    def step(self, *, compile: bool) -> tuple[Callable[[], None], float]:
        """Return a step as `clearhead train` takes it, captured as CUDA graphs, and the norm of its first gradient."""
        torch.manual_seed(0)
        machine = Machine(device="cuda", precision="bfloat16", compile=compile)
        train_state = TrainState(self.spec.build().cuda().train(), self.task, Optimizer(), machine)

        def run() -> None:
            train_state.step([self.batch], 1e-4)

        run()
        return run, train_state.totals().grad_norm

    def speed(self, run: Callable[[], object]) -> float:
        return self.batch["tokens"].numel() / milliseconds(run, 10)


def gpt2_case() -> Case:
    ids = torch.randint(GPT2_VOCABULARY, (32, 1025))
    batch = {"tokens": ids[:, :-1].contiguous(), "wanted": ids[:, 1:].contiguous()}
    return Case(
        work="training GPT-2 124M, 32 x 1024",
        spec=presets.gpt2("small", vocabulary=GPT2_VOCABULARY, dropout=0.0),
        task=Generate(tokenizers={}, context=1024),
        batch=batch,
        peer=lambda: training_step(PlainGPT2(GPT2_VOCABULARY).cuda(), *(one.cuda() for one in batch.values())),
        peer_name="plain PyTorch",
    )


def base_case() -> Case:
    source, ids = torch.randint(BASE_VOCABULARY, (256, 128)), torch.randint(BASE_VOCABULARY, (256, 129))
    lengths = torch.randint(100, 129, (256,))
    target, wanted = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    hidden = torch.zeros(256, 128).masked_fill(torch.arange(128) >= lengths[:, None], float("-inf"))
    inputs = (source, target, wanted, hidden)
    return Case(
        work="training base encoder-decoder, 256 x 128, dropout 0.1",
        spec=presets.base(BASE_VOCABULARY),
        task=Translate(tokenizers={}, context=129),
        batch={"source": source, "source_lengths": lengths, "tokens": target, "wanted": wanted},
        peer=lambda: training_step(PlainTransformer(BASE_VOCABULARY, 128).cuda(), *(one.cuda() for one in inputs)),
        peer_name="nn.Transformer",
    )


def qwen_case() -> Case:
    """The shape of Qwen2.5-0.5B. llmq publishes 149 k tokens a second in bfloat16 and 164 k in float8, on an H100."""
    ids = torch.randint(QWEN_VOCABULARY, (16, 1025))
    return Case(
        work="training Qwen2.5-0.5B's shape, 16 x 1024",
        spec=presets.llama(presets.Size(24, 896, 14, 2, 4864), vocabulary=QWEN_VOCABULARY, tied=True),
        task=Generate(tokenizers={}, context=1024),
        batch={"tokens": ids[:, :-1].contiguous(), "wanted": ids[:, 1:].contiguous()},
    )


CASES: dict[str, Callable[[], Case]] = {"base": base_case, "gpt2": gpt2_case, "qwen": qwen_case}


def peer_job(make: Callable[[], Case]) -> Job:
    def prepare() -> Callable[[], Iterator[Figure]]:
        case = make()
        assert case.peer is not None
        run = warmed_up(case.peer())

        def measure() -> Iterator[Figure]:
            name = f"{case.peer_name}, compiled"
            yield Figure(work=name, figure=case.speed(run), unit="k tok/s", peer_of=case.work)

        return measure

    return prepare


def own_job(make: Callable[[], Case]) -> Job:
    def prepare() -> Callable[[], Iterator[Figure]]:
        case = make()
        step, norm = case.step(compile=True)
        compiled = [warmed_up(step)]
        del step

        def measure() -> Iterator[Figure]:
            speed = case.speed(compiled.pop())
            yield Figure(work=f"{case.work}, compiled and captured", figure=speed, unit="k tok/s")
            clean()
            run, plain = case.step(compile=False)
            yield Figure(work=f"{case.work}, captured", figure=case.speed(run), unit="k tok/s")
            if not 0.9 < norm / plain < 1.1:  # dropout draws other numbers
                raise RuntimeError(f"compiled, the first gradient has the norm {norm}, and {plain} if not compiled")

        return measure

    return prepare


def warmed_up(run: Callable[[], object]) -> Callable[[], object]:
    """Return the step compiled and captured, with no more memory than it needs: other processes wait beside it."""
    for _ in range(4):
        run()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return run
