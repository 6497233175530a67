"""256 requests to a language model at once: continuous batching beside Hugging Face's, tokens a second.

    python benchmarks/requests_256.py --device cuda               # the shape of Qwen3-0.6B, random weights, bf16
    python benchmarks/requests_256.py --device cpu --requests 6 --layers 2 --most 40

The requests are nano-vLLM's: prompts of 100 to 1,024 tokens and 100 to 1,024 new ones, drawn with a fixed seed; nothing
ends earlier. Each engine decodes some requests before it is measured, so that kernels are loaded and steps recorded.
Greedy, since a sampled token differs from engine to engine; time is on the wall, from the first request to the last
token, and counts new tokens alone.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from typing import Any

import torch

from clearhead.decoding import Rules
from clearhead.decoding.continuous import ContinuousBatch
from clearhead.decoding.scheduler import Finished, Job
from clearhead.interop.architectures import ARCHITECTURES
from clearhead.interop.tables import Config

Request = tuple[tuple[int, ...], int]
"""A prompt, and how many new tokens."""
VOCABULARY = 151_936


def draw_requests(count: int, most: int, seed: int) -> list[Request]:
    rng = random.Random(seed)
    fewest = min(100, most)
    return [
        (tuple(rng.randint(0, 10_000) for _ in range(rng.randint(fewest, most))), rng.randint(fewest, most))
        for _ in range(count)
    ]


def qwen_config(layers: int) -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        rope_parameters={"rope_theta": 1e6, "rope_type": "default"},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def open_ours(config: Any, device: str, dtype: torch.dtype, slots: int, most: int) -> Callable[[list[Request]], int]:
    with torch.device("meta"):
        model = ARCHITECTURES["qwen3"].spec(Config(config.to_dict(), "qwen3")).build()
    model = model.to_empty(device=device).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02) if parameter.ndim > 1 else parameter.fill_(1)
    engine = ContinuousBatch(model, slots=slots, columns=2 * most + 1, prompt_tokens=16_384)

    def serve(requests: list[Request]) -> int:
        for prompt, new in requests:
            engine.add(Job(inputs=prompt, rules=Rules(max_new=new)))
        written = 0
        while engine.busy:
            finished = [event for event in engine.step() if isinstance(event, Finished)]
            written += sum(len(event.hypotheses[0].tokens) for event in finished)
        return written

    return serve


def open_theirs(config: Any, device: str, dtype: torch.dtype) -> Callable[[list[Request]], int]:
    from transformers import GenerationConfig, Qwen3ForCausalLM

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config).to(device=device, dtype=dtype).eval()
    manager = model.init_continuous_batching(GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=4096))
    manager.start()

    def serve(requests: list[Request]) -> int:
        for prompt, new in requests:
            manager.add_request(list(prompt), max_new_tokens=new)
        written, left = 0, len(requests)
        while left:
            result = manager.get_result(timeout=5)
            if result is not None and result.is_finished():
                written, left = written + len(result.generated_tokens), left - 1
        return written

    return serve


def measure(name: str, serve: Callable[[list[Request]], int], requests: list[Request]) -> dict[str, Any]:
    serve([(prompt, min(new, 40)) for prompt, new in requests[: len(requests) // 4]])
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    written = serve(requests)
    seconds = time.perf_counter() - began
    expected = sum(new for _, new in requests)
    if written != expected:
        raise SystemExit(f"{name}: {written} tokens were written, and {expected} were asked for")
    row = {"engine": name, "tokens": written, "seconds": seconds, "tokens_a_second": written / seconds}
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--most", type=int, default=1024, help="the most tokens of a prompt, and of its answer")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--only", choices=("ours", "theirs"))
    asked = parser.parse_args()
    dtype = torch.bfloat16 if asked.device == "cuda" else torch.float32
    config, requests = qwen_config(asked.layers), draw_requests(asked.requests, asked.most, 0)
    rows = []
    if asked.only != "theirs":
        serve = open_ours(config, asked.device, dtype, min(256, asked.requests), asked.most)
        rows.append(measure("clearhead", serve, requests))
        del serve
        torch.cuda.empty_cache()
    if asked.only != "ours":
        rows.append(measure("transformers", open_theirs(config, asked.device, dtype), requests))
    if len(rows) > 1:
        print(f"ratio {rows[0]['tokens_a_second'] / rows[1]['tokens_a_second']:.2f}")


if __name__ == "__main__":
    main()
