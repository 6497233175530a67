"""Peers written out in plain PyTorch, as anyone would: nn.Transformer with embeddings, and a GPT-2 like nanoGPT's."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, n, width = x.shape
        q, k, v = (
            one.view(batch, n, self.heads, -1).transpose(1, 2) for one in self.qkv(self.norm_1(x)).split(width, 2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, n, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class PlainGPT2(nn.Module):
    """GPT-2 124M; returns the mean loss."""

    def __init__(
        self, vocabulary: int, width: int = 768, heads: int = 12, layers: int = 12, context: int = 1024
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for one in self.parameters():
            if one.ndim == 2:
                nn.init.normal_(one, std=0.02)

    def forward(self, tokens: Tensor, wanted: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())


class PlainTransformer(nn.Module):
    """The base encoder-decoder on nn.Transformer, one table for source, target and output; returns the mean loss."""

    def __init__(self, vocabulary: int, length: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.table, self.dropout = nn.Embedding(vocabulary, 512), dropout
        nn.init.normal_(self.table.weight, std=512**-0.5)
        self.body = nn.Transformer(512, 8, 6, 6, 2048, dropout, batch_first=True)
        self.register_buffer("places", torch.randn(length, 512))

    def embed(self, tokens: Tensor) -> Tensor:
        return F.dropout(self.table(tokens) * 512**0.5 + self.places, self.dropout)

    def forward(self, source: Tensor, target: Tensor, wanted: Tensor, padding: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        states = self.body(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        logits = F.linear(states, self.table.weight)
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def training_step(model: nn.Module, *inputs: Tensor) -> Callable[[], None]:
    """Return one step of training in bf16 autocast, the model compiled, with torch's fused AdamW and clipping."""
    optimiser = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    compiled = torch.compile(model)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(*inputs)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step
