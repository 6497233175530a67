"""`attend`: attention from any parts, by the fastest kernel that does them exactly. `explain`: every step of it."""

from torch import Tensor

from clearhead.attention import reference
from clearhead.attention.context_parallel import attend_split
from clearhead.attention.kernels import Choice, explain_choice, run
from clearhead.attention.kernels.fused import attend_directly
from clearhead.attention.mask_rules import Mask
from clearhead.attention.positions import NoPosition, Position
from clearhead.attention.reference import Steps
from clearhead.attention.request import AttentionOptions
from clearhead.attention.sequence_split import SequenceSplit
from clearhead.attention.similarity import Similarity
from clearhead.attention.weighting import Softmax, Weighting
from clearhead.calls import public

SOFTMAX = Softmax()
NO_POSITION = NoPosition()


@public
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    similarity: Similarity | None = None,
    weighting: Weighting = SOFTMAX,
    position: Position = NO_POSITION,
    mask: Mask | Tensor | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    dropout: float = 0.0,
    kernel: str = "auto",
    split: SequenceSplit | None = None,
) -> Tensor:
    """Return the context of every query: the values, weighted by how well each key fits.

    Args:
        query: `(batch, head, query, d_head)`; batch, then head, may be left out.
        key: `(batch, head, key, d_head)`. It may have fewer heads than the query, if they divide them.
        value: `(batch, head, key, d_value)`, with as many heads as `key`.
        similarity: How a query and a key are compared; if None, the weighting's default: scaled dot product, or
            φ(q)·φ(k).
        weighting: How a row of scores becomes weights.
        position: How positions act on queries, keys or scores.
        mask: A mask, or a bool tensor that is True where a query may attend.
        query_positions: Absolute positions, `(n,)` or `(batch, n)`. By default the queries are the last of the keys, so
            new queries on cached keys need nothing more.
        key_positions: Absolute positions of the keys; 0, 1, 2, … by default.
        dropout: Share of the weights that is set to 0.
        kernel: Name of a kernel, or `auto`.
        split: If given, the tensors are this process's part of a sequence, and the mask is that of the whole one.

    Returns:
        Contexts, `(batch, head, query, d_value)`.

    Raises:
        ShapeError: If shapes do not fit together.
        DtypeError: If dtypes differ.
        DeviceError: If devices differ.
        OptionError: If a name or number is not allowed.
        UnsupportedError: If the named kernel cannot compute it.

    >>> import torch, clearhead as ch
    >>> q, k, v = torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 3)
    >>> ch.attend(q, k, v, mask=ch.masks.causal()).shape
    torch.Size([2, 5, 3])
    """
    plain = similarity is None and weighting is SOFTMAX and position is NO_POSITION and kernel in ("auto", "fused")
    if plain and query_positions is None and key_positions is None and dropout == 0 and split is None:
        direct = attend_directly(query, key, value, mask)
        if direct is not None:
            return direct
    options = AttentionOptions(similarity, weighting, position, mask, dropout, kernel)
    inputs = options.inputs((query, key, value), (query_positions, key_positions), split)
    context = run(kernel, inputs) if split is None else attend_split(kernel, inputs, split)
    return context if query.ndim == 4 else context.view(*query.shape[:-1], value.shape[-1])


@public
def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    similarity: Similarity | None = None,
    weighting: Weighting = SOFTMAX,
    position: Position = NO_POSITION,
    mask: Mask | Tensor | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
) -> Steps:
    """Return every step of `attend`: query, key, value, score, scaled, masked, weight, context.

    Args:
        query: As in `attend`, like all arguments.
        key: The keys.
        value: The values.
        similarity: How a query and a key are compared.
        weighting: How a row of scores becomes weights.
        position: How positions act.
        mask: Where a query may attend.
        query_positions: Positions of the queries.
        key_positions: Positions of the keys.

    Returns:
        The steps, computed by the reference.

    Raises:
        ShapeError: If shapes do not fit together.

    >>> import torch, clearhead as ch
    >>> steps = ch.explain(torch.eye(2), torch.eye(2), torch.eye(2), similarity=ch.similarity.Dot())
    >>> steps.weight
    tensor([[0.7311, 0.2689],
            [0.2689, 0.7311]])
    """
    options = AttentionOptions(similarity, weighting, position, mask)
    steps = reference.steps(options.inputs((query, key, value), (query_positions, key_positions)))
    for _ in range(4 - query.ndim):
        steps = steps.without_batch()
    return steps


@public
def which_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    similarity: Similarity | None = None,
    weighting: Weighting = SOFTMAX,
    position: Position = NO_POSITION,
    mask: Mask | Tensor | None = None,
    query_positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    dropout: float = 0.0,
    kernel: str = "auto",
) -> Choice:
    """Return the kernel that `attend` would run for these arguments, why, and what it costs.

    Args:
        query: As in `attend`, like all arguments.
        key: The keys.
        value: The values.
        similarity: How a query and a key are compared.
        weighting: How a row of scores becomes weights.
        position: How positions act.
        mask: Where a query may attend.
        query_positions: Positions of the queries.
        key_positions: Positions of the keys.
        dropout: Share of the weights that is set to 0.
        kernel: Name of a kernel, or `auto`.

    Returns:
        The choice.

    Raises:
        UnsupportedError: If the named kernel cannot compute it.

    >>> import torch, clearhead as ch
    >>> q = torch.randn(1, 2, 5, 8)
    >>> print(ch.which_kernel(q, q, q).kernel)
    fused
    """
    options = AttentionOptions(similarity, weighting, position, mask, dropout, kernel)
    return explain_choice(kernel, options.inputs((query, key, value), (query_positions, key_positions)))
