"""The three models: `Encoder`, `Decoder`, and the classic `EncoderDecoder` of both.

Each is built from a spec, a frozen description of every part. A model's forward is one piece of code: the same blocks
run in training and, on caches, in decoding.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, final, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.attention import mask_numbers, masks, modes
from clearhead.attention.mask_rules import Mask
from clearhead.attention.sequence_split import SequenceSplit
from clearhead.calls import CodeRepr, public
from clearhead.errors import DtypeError, OptionError, ShapeError
from clearhead.model.blocks import BlockSpec, FromMemory, FromSelf, KVSources, Stack
from clearhead.model.embedding import Embedding, check_positions
from clearhead.model.int8 import count_weights
from clearhead.model.outputs import Blanks, NextToken, Output, ToVocabulary
from clearhead.taps import Tapped

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Tokens = Int[Tensor, "batch n"]
Lengths = Int[Tensor, "batch"] | Sequence[int]
"""Number of tokens of each row that count. A list follows the tokens to their device."""
Vectors = Float[Tensor, "batch n d_model"]
Tied = Literal["none", "two", "three", "embeddings"]
Same = TypeVar("Same")
"""The class of self: `Self` itself stops the check of signatures in the tests."""


@dataclass(frozen=True, kw_only=True)
class StackSpec(CodeRepr):
    """What the specs of an encoder and of a decoder share: blocks between an embedding and an output."""

    vocabulary: int
    d_model: int
    blocks: tuple[BlockSpec, ...]
    embedding: Embedding = Embedding()

    @property
    def stacks(self: Same) -> tuple[Same]:
        return (self,)

    @property
    def table_rows(self) -> int:
        """Count the rows of d_model that all tables of tokens have together."""
        return self.vocabulary

    def map_stacks(self: Same, change: Callable[[Any], Any]) -> Same:
        """Return the spec with every stack changed: here there is one."""
        return change(self)

    def with_own_tables(self: Same) -> Same:
        """Return the spec for a vocabulary for each stack: here there is one."""
        return self


@final
@public
@dataclass(frozen=True, kw_only=True)
class EncoderSpec(StackSpec):
    """Spec of an encoder, which sees the full sequence.

    Args:
        vocabulary: Number of token ids.
        d_model: Width of the residual stream.
        blocks: The blocks, first to last.
        embedding: Spec of the embedding.
        output: Spec of the output; with None the model returns its last vectors.

    Raises:
        OptionError: If blocks, embedding and output do not fit together.

    >>> import clearhead as ch
    >>> ch.presets.bert("tiny", vocabulary=50).d_model
    128
    """

    output: Output | None = Blanks()

    kind: ClassVar[str] = "encoder"
    decoder: ClassVar[None] = None

    def __post_init__(self) -> None:
        if any(block.cross is not None for block in self.blocks):
            raise OptionError("an encoder has nothing to cross-attend to: leave `cross` out of its blocks")
        if self.output is not None and self.output.causal:
            raise OptionError("an encoder sees the next token, so it cannot predict it: use Blanks, Classes or None")

    @property
    def encoder(self) -> "EncoderSpec":
        return self

    def build(self) -> "Encoder":
        return Encoder(self)


@final
@public
@dataclass(frozen=True, kw_only=True)
class DecoderSpec(StackSpec):
    """Spec of a decoder. Every mask is causal; a block may add another.

    Args:
        vocabulary: Number of token ids.
        d_model: Width of the residual stream.
        blocks: The blocks, first to last.
        embedding: Spec of the embedding.
        output: Spec of the output.

    Raises:
        OptionError: If blocks, embedding and output do not fit together.

    >>> from clearhead.model import AttentionSpec, BlockSpec, DecoderSpec, ReLU
    >>> block = BlockSpec(attention=AttentionSpec(heads=2), feed_forward=ReLU(32))
    >>> model = DecoderSpec(vocabulary=20, d_model=8, blocks=(block, block)).build()
    """

    output: Output = NextToken()

    kind: ClassVar[str] = "decoder"
    encoder: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.embedding.position is not None and self.embedding.position.skips is not None:
            raise OptionError(
                "a decoder gives every token a position, since its KV cache counts them: leave `skips` out of "
                f"{self.embedding.position!r}"
            )

    @property
    def decoder(self) -> "DecoderSpec":
        return self

    def build(self) -> "Decoder":
        return Decoder(self)


@final
@public
@dataclass(frozen=True, kw_only=True)
class EncoderDecoderSpec(CodeRepr):
    """The classic Transformer: an encoder without output, and a decoder whose blocks all cross-attend to it.

    Args:
        encoder: Spec of the encoder.
        decoder: Spec of the decoder.
        tied: `two` shares one table between the decoder's embedding and the output, `three` also with the encoder's
            embedding, `embeddings` between the two embeddings only; `none` gives each its own. It overrides the
            decoder's `output.tied`.

    Raises:
        OptionError: If the two do not fit together.

    >>> import clearhead as ch
    >>> ch.presets.tiny(vocabulary=50).tied
    'three'
    """

    encoder: EncoderSpec
    decoder: DecoderSpec
    tied: Tied = "three"

    kind: ClassVar[str] = "encoder-decoder"

    def __post_init__(self) -> None:
        if self.tied not in get_args(Tied):
            raise OptionError(f"tied must be one of {', '.join(get_args(Tied))}; came {self.tied!r}")
        if self.encoder.d_model != self.decoder.d_model:
            raise OptionError(
                f"encoder and decoder must have one d_model; came {self.encoder.d_model} and {self.decoder.d_model}"
            )
        one_table = self.tied in ("three", "embeddings")
        if one_table and self.encoder.vocabulary != self.decoder.vocabulary:
            raise OptionError(
                "one table for source and target needs one vocabulary; came "
                f"{self.encoder.vocabulary} and {self.decoder.vocabulary}. Share it, or choose tied='two'"
            )
        if one_table and self.encoder.embedding.frozen != self.decoder.embedding.frozen:
            raise OptionError("one table for source and target is frozen for both or for neither")
        if self.encoder.output is not None:
            raise OptionError("the encoder of an encoder-decoder gives vectors: leave its output out (None)")
        if any(block.cross is None for block in self.decoder.blocks):
            raise OptionError("every decoder block must cross-attend to the encoder: fill its `cross` slot")

    @property
    def d_model(self) -> int:
        return self.encoder.d_model

    @property
    def output(self) -> Output:
        return self.decoder.output

    @property
    def stacks(self) -> tuple[EncoderSpec, DecoderSpec]:
        return self.encoder, self.decoder

    @property
    def table_rows(self) -> int:
        """Count the rows of d_model that all tables of tokens have together."""
        source, target = self.encoder.vocabulary, self.decoder.vocabulary
        return {"three": target, "embeddings": 2 * target, "two": source + target, "none": source + 2 * target}[
            self.tied
        ]

    def map_stacks(self, change: Callable[[Any], Any]) -> "EncoderDecoderSpec":
        """Return the spec with encoder and decoder changed by the same function."""
        return replace(self, encoder=change(self.encoder), decoder=change(self.decoder))

    def with_own_tables(self) -> "EncoderDecoderSpec":
        """Return the spec for a vocabulary for each stack: source and target share no table."""
        apart: dict[Tied, Tied] = {"three": "two", "embeddings": "none"}
        return replace(self, tied=apart.get(self.tied, self.tied))

    def build(self) -> "EncoderDecoder":
        return EncoderDecoder(self)


class StackModel(Tapped):
    """What an encoder and a decoder share."""

    spec: Any
    output: Any
    context_group: "ProcessGroup | None" = None
    """Within `splitting_sequences`: the processes that sequences are split over."""

    def __init__(self, spec: StackSpec, *, mask: Mask | None = None) -> None:
        super().__init__()
        self.embedding = spec.embedding.build(spec.vocabulary, spec.d_model)
        self.stack = Stack(spec.blocks, spec.d_model, mask=mask, stream=spec.embedding.stream(spec.d_model))

    @property
    def stacks(self: Same) -> tuple[Same]:
        return (self,)

    def extra_repr(self) -> str:
        """Return what a printed model says first: its sizes, and whether its output has the embedding's table."""
        output, table = self.output, self.embedding.table
        tied = f", tied={output.table is table}" if isinstance(output, ToVocabulary) else ""
        sizes = f"vocabulary={self.spec.vocabulary}, d_model={self.spec.d_model}, n_layers={len(self.stack.blocks)}"
        return f"{sizes}{tied}, parameters={count_weights(self):,}"


@final
class Encoder(StackModel):
    """Map tokens to vectors, each of which depends on the full sentence, and these to the output's logits.

    Args:
        spec: Its spec.

    >>> import torch
    >>> from clearhead.model import presets
    >>> model = presets.bert("tiny", vocabulary=50).build()
    >>> model(torch.randint(50, (2, 7)), lengths=torch.tensor([7, 4])).shape
    torch.Size([2, 7, 50])
    """

    spec: EncoderSpec
    output: nn.Module | None
    decoder: ClassVar[None] = None

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__(spec)
        self.spec = spec
        self.output = None if spec.output is None else spec.output.build(spec.d_model, self.embedding.table)

    @property
    def encoder(self) -> "Encoder":
        return self

    @public
    def forward(
        self,
        tokens: Tokens,
        *,
        lengths: Lengths | None = None,
        mask: Mask | None = None,
        segments: Tensor | None = None,
    ) -> Float[Tensor, "*answer"]:
        """Return the output of the last vectors; the vectors themselves if there is no output.

        `segments`, for a model that has them, is the number of each token's segment: 0 unless given.
        """
        lengths = row_lengths(lengths, tokens)
        states = self.states(tokens, lengths=lengths, mask=mask, segments=segments)
        return states if self.output is None else apply_output(self, states, lengths, tokens)

    def states(
        self,
        tokens: Tokens,
        *,
        lengths: Lengths | None = None,
        mask: Mask | None = None,
        segments: Tensor | None = None,
    ) -> Vectors:
        """Return the last vectors. Of row b the first `lengths[b]` tokens count; what follows is padding."""
        check_tokens("tokens", tokens, self.spec.vocabulary)
        split = split_of(self, tokens)
        sources = KVSources(FromSelf(intersect(mask, padding(lengths, tokens)), split=split))
        if split is None:
            vectors = self.embedding(tokens, segments=segments)
        else:
            segments = None if segments is None else split.take(segments, 1)
            positions = split.indices(tokens.device)
            vectors = self.embedding(split.take(tokens, 1), positions=positions, segments=segments)
        return self.stack(vectors, [sources] * len(self.stack.blocks))


@final
class Decoder(StackModel):
    """Maps tokens to the logits of the next token, at every position.

    Args:
        spec: Its spec.

    >>> import torch
    >>> from clearhead.model import presets
    >>> presets.gpt2("tiny", vocabulary=50).build()(torch.randint(50, (2, 7))).shape
    torch.Size([2, 7, 50])
    """

    spec: DecoderSpec
    output: nn.Module
    encoder: ClassVar[None] = None

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__(spec, mask=masks.causal())
        self.spec = spec
        self.output = spec.output.build(spec.d_model, self.embedding.table)

    @property
    def decoder(self) -> "Decoder":
        return self

    @public
    def forward(
        self,
        tokens: Tokens,
        *,
        lengths: Lengths | None = None,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        memory: Float[Tensor, "batch source d_model"] | None = None,
        memory_lengths: Lengths | None = None,
    ) -> Float[Tensor, "*answer"]:
        """Return logits at every position. Padding comes after the tokens, which do not see it: it needs no mask.

        `lengths` matter to an output for classes; `mask` is combined with the blocks' masks. For packed documents whose
        `positions` begin again, the mask is `masks.document(ids, ids)`: with one argument ids are read by position.
        """
        check_tokens("tokens", tokens, self.spec.vocabulary)
        if memory is not None and all(block.cross is None for block in self.spec.blocks):
            raise OptionError("this decoder has no cross-attention, and was given a memory to attend to")
        lengths = row_lengths(lengths, tokens)
        cross = None if memory is None else FromMemory(memory, padding(memory_lengths, memory), positions)
        if positions is not None:
            check_positions(positions, tokens)
        split = split_of(self, tokens)
        if split is not None:
            positions = None if positions is None else split.take(positions, -1)
        kv_sources = [KVSources(FromSelf(mask, positions, split), cross)] * len(self.stack.blocks)
        if split is not None:
            tokens = split.take(tokens, 1)
            positions = split.indices(tokens.device) if positions is None else positions
        states = self.states(tokens, kv_sources, positions=positions)
        return apply_output(self, states, lengths, tokens)

    def states(
        self, tokens: Tokens, kv_sources: Sequence[KVSources], *, positions: Tensor | None = None, start: int = 0
    ) -> Vectors:
        """Return the last vectors of tokens at these positions (or from `start` on), with these KV sources."""
        return self.stack(self.embedding(tokens, positions=positions, start=start), kv_sources)


def apply_output(model: Encoder | Decoder, states: Vectors, lengths: Tensor | None, tokens: Tensor) -> Tensor:
    """Return the output of a model's last vectors. An output with a wide part reads the tokens too."""
    assert model.output is not None
    assert model.spec.output is not None
    if model.spec.output.reads_tokens:
        return model.output(states, lengths, tokens=tokens)
    return model.output(states, lengths)


@final
class EncoderDecoder(Tapped):
    """The classic Transformer: the decoder predicts the next target token from those before it and from the source.

    Args:
        spec: Its spec.

    >>> import torch
    >>> from clearhead.model import presets
    >>> model = presets.tiny(vocabulary=50).build()
    >>> model(torch.randint(50, (2, 7)), torch.randint(50, (2, 5)), source_lengths=torch.tensor([7, 4])).shape
    torch.Size([2, 5, 50])
    """

    def __init__(self, spec: EncoderDecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.encoder = spec.encoder.build()
        self.decoder = spec.decoder.build()
        tie(self, spec.tied)

    @property
    def stacks(self) -> tuple[Encoder, Decoder]:
        return self.encoder, self.decoder

    def extra_repr(self) -> str:
        return f"d_model={self.spec.d_model}, tied={self.spec.tied!r}, parameters={count_weights(self):,}"

    @public
    def forward(
        self,
        source: Int[Tensor, "batch source"],
        target: Int[Tensor, "batch target"],
        *,
        source_lengths: Lengths | None = None,
        mask: Mask | None = None,
    ) -> Float[Tensor, "*answer"]:
        """Return logits of the token after each target token. `mask` is combined with the decoder's masks."""
        check_tokens("source", source, self.spec.encoder.vocabulary)
        check_tokens("target", target, self.spec.decoder.vocabulary)
        source_lengths = row_lengths(source_lengths, source)
        memory = self.encoder(source, lengths=source_lengths)
        return self.decoder(target, mask=mask, memory=memory, memory_lengths=source_lengths)


Transformer = Encoder | Decoder | EncoderDecoder
"""Any model. `encoder` and `decoder` are itself, a part of it, or None if it has none; `stacks` has those it has."""


@contextlib.contextmanager
def splitting_sequences(model: Transformer, group: "ProcessGroup | None") -> Iterator[None]:
    """Let a model compute this process's places of every sequence, in step with the others of the group; None: all.

    It is called with whole sequences, and returns what belongs to the places of `SequenceSplit.over(group, n)`.
    """
    for stack in model.stacks:
        stack.context_group = group
    try:
        yield
    finally:
        for stack in model.stacks:
            stack.context_group = None


def split_of(model: Encoder | Decoder, tokens: Tensor) -> SequenceSplit | None:
    """Return which places of these sequences this process computes; None if all."""
    group = model.context_group
    return None if group is None else SequenceSplit.over(group, tokens.shape[1])


def tie(model: EncoderDecoder, tied: Tied) -> None:
    """Share the decoder's table with the output, with the encoder, or with both."""
    table, output = model.decoder.embedding.table, model.decoder.output
    if tied in ("three", "embeddings"):
        model.encoder.embedding.table = table
    if isinstance(output, ToVocabulary):
        untied = (
            output.table
            if output.table is not table
            else nn.Parameter(torch.randn_like(table) * table.shape[1] ** -0.5)
        )
        output.table = table if tied in ("two", "three") else untied


def row_lengths(lengths: Lengths | None, sequence: Tensor) -> Int[Tensor, "batch"] | None:
    """Return the lengths as a tensor, after checking that there is one for each row of the sequence."""
    if lengths is None:
        return None
    batch, n = sequence.shape[:2]
    rows = mask_numbers.numbers_on(mask_numbers.row_numbers("lengths", lengths), sequence.device)
    if rows.shape != (batch,):
        raise ShapeError(f"lengths: expected one for each of the {batch} sequences; came {tuple(rows.shape)}")
    if rows.numel() and modes.can_read(rows):
        low, high = (int(x) for x in torch.aminmax(rows))
        if low < 1 or high > n:
            raise ShapeError(f"lengths go from 1 to the {n} tokens there are; there is {low if low < 1 else high}")
    return rows


def padding(lengths: Lengths | None, sequence: Tensor) -> Mask | None:
    rows = row_lengths(lengths, sequence)
    return None if rows is None else masks.padding(rows)


def intersect(mask: Mask | None, other: Mask | None) -> Mask | None:
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other


def check_tokens(name: str, tokens: Tensor, vocabulary: int) -> None:
    """Check for whole numbers in `(batch, n)`, none outside the vocabulary (read on a CPU, where it is free)."""
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.shape[1] == 0:
        actual = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
        raise ShapeError(f"{name}: expected a tensor (batch, n) of token ids, n at least 1; came {actual}")
    if tokens.dtype not in (torch.int64, torch.int32):
        raise DtypeError(f"{name}: token ids are int64 or int32; came {tokens.dtype}")
    if tokens.numel() and modes.can_read(tokens):
        low, high = (int(x) for x in torch.aminmax(tokens))
        if low < 0 or high >= vocabulary:
            raise OptionError(
                f"{name}: ids go from 0 to {vocabulary - 1} in this vocabulary; there is {low if low < 0 else high}"
            )
