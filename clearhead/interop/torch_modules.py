"""Read a state dict of torch's own nn.Transformer, nn.TransformerEncoder or nn.TransformerDecoder into a spec of ours.

A state dict has names and numbers, and neither heads, nor activations, nor where the norms stand: the spec says those.
`{torch}` is the name of torch's module in the user's model, `{side}` is encoder or decoder (left out where the model is
one of the two), and `{i}` the number of a block. The mapping:

    {torch}.{side}.layers.{i}.self_attn.in_proj_weight   query, key and value maps of blocks.{i}.attention, stacked
    {torch}.{side}.layers.{i}.self_attn.out_proj         blocks.{i}.attention.output
    {torch}.{side}.layers.{i}.multihead_attn             blocks.{i}.cross, in the same way
    {torch}.{side}.layers.{i}.linear1, linear2           blocks.{i}.feed_forward.up, down
    {torch}.{side}.layers.{i}.norm1, norm2, norm3        the norms around attention, cross-attention and feed-forward
    {torch}.{side}.norm                                  the norm that the stack ends with

torch ends both stacks of nn.Transformer with a norm, also where each block ends with one: `PostNorm(last=True)`. What
is not torch's, such as tables of tokens and positions and the output, is named one by one.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from clearhead.errors import OptionError, unreadable
from clearhead.interop.architectures.base import expect, expect_heads, norm, pairs
from clearhead.interop.tables import TensorRow, fill, unplaced_error
from clearhead.interop.tensor_files import read_archive
from clearhead.model import GELU, BlockSpec, DecoderSpec, EncoderSpec, LayerNorm, PostNorm, PreNorm, ReLU
from clearhead.model.sizes import Spec


def read_torch_state_dict(
    source: str | Path | Mapping[str, Tensor], spec: Spec, *, module: str, names: Mapping[str, str]
) -> nn.Module:
    """Build the model of a spec with the weights of a state dict, or of a file with one (.safetensors, .pt, .bin).

    `module` is the name of torch's module in the user's model ("" if the state dict is its own), `names` has, for
    every other tensor of theirs, the name of ours. OptionError if one of theirs is missing, has another shape or has
    no place, and where one of ours stays unwritten.

    >>> from torch import nn
    >>> from clearhead.model import BlockSpec, AttentionSpec, EncoderSpec, Embedding, PostNorm, ReLU
    >>> from clearhead import Heads
    >>> body = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 1, enable_nested_tensor=False)
    >>> theirs = nn.ModuleDict({"tokens": nn.Embedding(20, 8), "body": body})
    >>> block = BlockSpec(
    ...     attention=AttentionSpec(heads=Heads(2, bias=True)), feed_forward=ReLU(16), arrangement=PostNorm()
    ... )
    >>> spec = EncoderSpec(vocabulary=20, d_model=8, blocks=(block,), embedding=Embedding(position=None), output=None)
    >>> names = {"tokens.weight": "embedding.table"}
    >>> model = read_torch_state_dict(theirs.state_dict(), spec, module="body", names=names)
    >>> bool((model.embedding.table == theirs["tokens"].weight).all())
    True
    """
    where = "the state dict" if isinstance(source, Mapping) else str(source)
    theirs = source if isinstance(source, Mapping) else load_state_dict(Path(source))
    model = spec.build()
    # A tied table has several names, and its tensor is under the first of them.
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    every = {name: first[id(parameter)] for name, parameter in model.named_parameters(remove_duplicate=False)}
    rows = list(torch_rows(spec, module))
    first_named: dict[str, str] = {}
    for their, our in names.items():
        if our not in every:
            raise OptionError(f"names: {our!r} is no tensor of this model; there are {', '.join(every)}")
        if their not in theirs:
            raise OptionError(f"{where}: the tensor {their} is missing; there are {', '.join(theirs)}")
        again = first_named.setdefault(every[our], their)
        if again == their:
            leading = theirs[their].ndim == model.get_parameter(our).ndim + 1
            rows.append(TensorRow(their, (every[our],), leading=leading))
        elif not theirs[again].equal(theirs[their]):
            raise OptionError(f"{where}: {again} and {their} differ, and are one tied table in this spec")
    unused = sorted(theirs.keys() - {row.theirs for row in rows} - names.keys())
    if unused:
        raise unplaced_error(unused, where)
    fill(dict(model.named_parameters()), rows, theirs, where)
    return model.eval()


def load_state_dict(path: Path) -> dict[str, Tensor]:
    if path.suffix != ".safetensors":
        return read_archive(path)
    with unreadable(path, SafetensorError, error=OptionError):
        return load_file(path)


def torch_rows(spec: Spec, module: str) -> Iterator[TensorRow]:
    """Yield the rows of torch's module: nn.Transformer for an encoder-decoder, else nn.TransformerEncoder."""
    inside = f"{module}." if module else ""
    for stack in spec.stacks:
        side = f"{stack.kind}." if len(spec.stacks) > 1 else ""
        yield from stack_rows(stack, side, f"{inside}{side}")


def stack_rows(spec: EncoderSpec | DecoderSpec, ours: str, theirs: str) -> Iterator[TensorRow]:
    for number, block in enumerate(spec.blocks):
        yield from block_rows(block, f"{ours}stack.blocks.{number}", f"{theirs}layers.{number}")
    if spec.blocks[-1].arrangement.final(spec.d_model) is not None:
        yield from norm(f"{ours}stack.norm", f"{theirs}norm", beta=has_beta(spec.blocks[-1]))


def block_rows(block: BlockSpec, ours: str, theirs: str) -> Iterator[TensorRow]:
    """Yield the rows of one block; its norms are numbered in the order of its branches."""
    layers = {"attention": (block.attention, "self_attn"), "cross": (block.cross, "multihead_attn")}
    branches = [name for name in ("attention", "cross", "feed_forward") if getattr(block, name) is not None]
    for name, (layer, their_name) in layers.items():
        if layer is not None:
            yield from attention_rows(f"{ours}.{name}", f"{theirs}.{their_name}", bias=expect_heads(layer).bias)
    bias = expect(block.feed_forward, (ReLU, GELU), "feed_forward").bias
    yield from pairs(f"{ours}.feed_forward.up", f"{theirs}.linear1", bias=bias)
    yield from pairs(f"{ours}.feed_forward.down", f"{theirs}.linear2", bias=bias)
    for number, branch in enumerate(branches, 1):
        yield from norm(f"{ours}.around_{branch}.norm", f"{theirs}.norm{number}", beta=has_beta(block))


def attention_rows(ours: str, theirs: str, *, bias: bool) -> Iterator[TensorRow]:
    """Yield the rows of nn.MultiheadAttention, whose three maps lie in one tensor."""
    maps = [f"{ours}.{name}.linear" for name in ("query", "key", "value")]
    yield TensorRow(f"{theirs}.in_proj_weight", tuple(f"{name}.weight" for name in maps))
    if bias:
        yield TensorRow(f"{theirs}.in_proj_bias", tuple(f"{name}.bias" for name in maps))
    yield from pairs(f"{ours}.output", f"{theirs}.out_proj", bias=bias)


def has_beta(block: BlockSpec) -> bool:
    arrangement = expect(block.arrangement, (PreNorm, PostNorm), "arrangement")
    return expect(arrangement.norm, LayerNorm, "norm").bias
