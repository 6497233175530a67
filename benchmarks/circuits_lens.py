"""EAP, EAP-IG and patched edges beside TransformerLens: the same random GPT-2, equal to 1e-5, and the time of both.

    pip install --no-deps --target peers "transformer_lens<3" fancy_einsum better_abc datasets …
    PYTHONPATH=peers python -m benchmarks.circuits_lens --layers 4 --pairs 4 --tokens 32

TransformerLens has hooks and no edges, so its side is written here, as EAP-IG's public code does it: hooks keep what
senders send and the gradients at receivers, and a product of the two gives every edge. Times are of the processor.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights
from transformers import GPT2Config, GPT2LMHeadModel

from clearhead.circuits import Contrast, Edge, Graph, LogitDifference, Texts, find_method, patch_edges, score_edges
from clearhead.interop import read_hugging_face


class Lens:
    """TransformerLens's model, and EAP on it."""

    def __init__(self, theirs: GPT2LMHeadModel, config: GPT2Config) -> None:
        made = HookedTransformerConfig(
            n_layers=config.n_layer,
            d_model=config.n_embd,
            n_ctx=config.n_positions,
            d_head=config.n_embd // config.n_head,
            n_heads=config.n_head,
            d_mlp=4 * config.n_embd,
            d_vocab=config.vocab_size,
            act_fn="gelu_new",
            normalization_type="LN",
            eps=config.layer_norm_epsilon,
            use_attn_result=True,
            use_split_qkv_input=True,
            use_hook_mlp_in=True,
            default_prepend_bos=False,
            dtype=torch.float64,
            device="cpu",
        )
        self.model = HookedTransformer(made)
        self.model.load_state_dict(convert_gpt2_weights(theirs, made), strict=False)
        self.model.requires_grad_(False)
        self.layers, self.heads = config.n_layer, config.n_head

    def senders(self, tokens: Tensor) -> dict[str, Tensor]:
        """Return what each sender sends, by our names."""
        _, cache = self.model.run_with_cache(tokens)
        found = {
            "decoder.embedding.token": cache["hook_embed"],
            "decoder.embedding.position": cache["hook_pos_embed"].expand_as(cache["hook_embed"]),
        }
        for layer in range(self.layers):
            for head in range(self.heads):
                result = cache[f"blocks.{layer}.attn.hook_result"][:, :, head]
                found[f"decoder.{layer}.attention.head.{head}"] = result
            found[f"decoder.{layer}.feed_forward"] = cache[f"blocks.{layer}.hook_mlp_out"]
        return found

    def gradients(self, tokens: Tensor, metric: LogitDifference, embedded: Tensor) -> dict[str, Tensor]:
        """Return the gradient at each receiver, by our names, with these token embeddings."""
        kept: dict[str, Tensor] = {}

        def keep(value: Tensor, hook: object) -> Tensor:
            kept[hook.name] = value  # type: ignore[attr-defined]
            return value

        def start(value: Tensor, hook: object) -> Tensor:
            return embedded.detach().requires_grad_()

        wanted = [f"blocks.{n}.hook_{role}_input" for n in range(self.layers) for role in "qkv"]
        wanted += [f"blocks.{n}.hook_mlp_in" for n in range(self.layers)]
        wanted.append(f"blocks.{self.layers - 1}.hook_resid_post")
        hooks = [("hook_embed", start), *((name, keep) for name in wanted)]
        value = metric(self.model.run_with_hooks(tokens, fwd_hooks=hooks)[None]).sum()
        by_name = dict(zip(wanted, torch.autograd.grad(value, [kept[name] for name in wanted]), strict=True))
        found = {"decoder.output": by_name[wanted[-1]]}
        for layer in range(self.layers):
            found[f"decoder.{layer}.feed_forward"] = by_name[f"blocks.{layer}.hook_mlp_in"]
            for role in ("query", "key", "value"):
                every = by_name[f"blocks.{layer}.hook_{role[0]}_input"]
                for head in range(self.heads):
                    found[f"decoder.{layer}.attention.{role}.{head}"] = every[:, :, head]
        return found

    def eap(self, graph: Graph, clean: Tensor, other: Tensor, metric: LogitDifference, steps: int) -> Tensor:
        """Return the scores of our edges; gradients are averaged over shares 1/steps … 1 of the clean embeddings."""
        one, two = self.senders(clean), self.senders(other)
        start, end = two["decoder.embedding.token"], one["decoder.embedding.token"]
        total: dict[str, Tensor] = {}
        for step in range(1, steps + 1):
            found = self.gradients(clean, metric, start + step / steps * (end - start))
            total = {name: total.get(name, 0.0) + value / steps for name, value in found.items()}
        names = list(one)
        changes = torch.stack([two[name] - one[name] for name in names])
        receivers = list(total)
        every = torch.einsum("sbnd,rbnd->bsr", changes, torch.stack([total[name] for name in receivers]))
        scores = torch.zeros(len(clean), len(graph.edges), dtype=every.dtype)
        for number, edge in enumerate(graph.edges):
            if edge.sender in names:
                scores[:, number] = every[:, names.index(edge.sender), receivers.index(edge.receiver)]
        return scores

    def patched(self, edge: Edge, clean: Tensor, other: Tensor) -> Tensor:
        """Return the logits where one edge to a query, key or value carries what it carries in the other text."""
        change = self.senders(other)[edge.sender] - self.senders(clean)[edge.sender]
        _, layer, _, role, head = edge.receiver.split(".")

        def add(value: Tensor, hook: object) -> Tensor:
            value = value.clone()
            value[:, :, int(head)] += change
            return value

        return self.model.run_with_hooks(clean, fwd_hooks=[(f"blocks.{layer}.hook_{role[0]}_input", add)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("layers", 4), ("pairs", 4), ("tokens", 32), ("width", 768), ("heads", 12), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=1000, n_positions=asked.tokens, n_embd=asked.width, n_layer=asked.layers, n_head=asked.heads
    )
    theirs = GPT2LMHeadModel(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = read_hugging_face(folder).model.double()
    lens, graph = Lens(theirs.double(), config), Graph(ours)
    clean, other = torch.randint(1000, (2, asked.pairs, asked.tokens))
    rows = torch.arange(asked.pairs)
    metric = LogitDifference(answer=rows, other=rows + 100, place=torch.full_like(rows, asked.tokens - 1))
    one, two = (Texts(tokens={"decoder": tokens}) for tokens in (clean, other))
    for name, steps in (("eap", 1), ("eap-ig", 5)):
        mine = lambda name=name: score_edges(find_method(name), Contrast(graph, one, two, metric))  # noqa: E731
        peer = lambda steps=steps: lens.eap(graph, clean, other, metric, steps)  # noqa: E731
        off = float((mine() - peer()).abs().max() / peer().abs().max())
        times = seconds(mine, asked.repeats), seconds(peer, asked.repeats)
        print(json.dumps({"method": name, "off": off, "seconds": times[0], "lens_seconds": times[1]}), flush=True)
    edge = Edge("decoder.0.feed_forward", "decoder.1.attention.value.3")
    source = Contrast(graph, one, two, metric).source
    found, expected = patch_edges(graph, one, [edge], source), lens.patched(edge, clean, other)
    print(json.dumps({"patched": str(edge), "off": float((found - expected).abs().max() / expected.abs().max())}))


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Return the median processor time of a call."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return statistics.median(times)


if __name__ == "__main__":
    main()
