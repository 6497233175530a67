"""`attend`: attention from any parts, by the fastest kernel that does them exactly. `explain`: every step of it."""

from torch import Tensor

from clearhead.attention import reference
from clearhead.attention.kernels import Choice, explain_choice, run
from clearhead.attention.kernels.fused import attend_directly
from clearhead.attention.masks import Mask
from clearhead.attention.positions import NoPosition, Position
from clearhead.attention.reference import Steps
from clearhead.attention.request import AttentionOptions
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
) -> Tensor:
    """Return the context of every query: the values, weighted by how well each key fits.

    `query` is `(batch, head, query, d_head)`, `key` and `value` `(batch, head, key, d)`; batch, then head, may be left
    out. Key and value may have fewer heads than the query, if they divide them. `similarity` defaults to the
    weighting's own: scaled dot product, or φ(q)·φ(k). Positions are absolute, `(n,)` or `(batch, n)`; by default keys
    count from 0 and the queries are the last of them, so that new queries on cached keys need nothing more.

    >>> import torch, clearhead as ch
    >>> q, k, v = torch.randn(2, 5, 8), torch.randn(2, 7, 8), torch.randn(2, 7, 3)
    >>> ch.attend(q, k, v, mask=ch.masks.causal()).shape
    torch.Size([2, 5, 3])
    """
    plain = similarity is None and weighting is SOFTMAX and position is NO_POSITION and kernel in ("auto", "fused")
    if plain and query_positions is None and key_positions is None and dropout == 0:
        direct = attend_directly(query, key, value, mask)
        if direct is not None:
            return direct
    options = AttentionOptions(similarity, weighting, position, mask, dropout, kernel)
    context = run(kernel, options.inputs((query, key, value), (query_positions, key_positions)))
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

    >>> import torch, clearhead as ch
    >>> q = torch.randn(1, 2, 5, 8)
    >>> print(ch.which_kernel(q, q, q).kernel)
    fused
    """
    options = AttentionOptions(similarity, weighting, position, mask, dropout, kernel)
    return explain_choice(kernel, options.inputs((query, key, value), (query_positions, key_positions)))
