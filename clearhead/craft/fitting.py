"""Fitting: designs for a head of a model that is there already, from what reaches that head.

In a trained model no direction of the stream is a token or a position. What a head needs is read out of it by least
squares: texts go through the model, and maps are found from the vectors that reach the head to codes of their places or
of their tokens. Norms, and what earlier layers wrote, are in those vectors, so they are taken into account as far as
a linear map can; nothing is promised, and `Installed.measure` says how sharp it came out.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead.attention.layer import Attention
from clearhead.attention.positions import Sinusoidal
from clearhead.calls import public
from clearhead.craft import designs, sharpness
from clearhead.craft.design import AskedScores, Design
from clearhead.craft.inputs import Inputs
from clearhead.decoding.generating import eval_mode
from clearhead.errors import OptionError
from clearhead.model.transformers import check_tokens
from clearhead.tracing.names import Names, sides_of

RIDGE = 1e-4
ROUNDS = 50
"""Rounds in which the codes of tokens are pushed apart."""
SCALES = [2.0 ** (step / 2) for step in range(-4, 21)]
"""What a fitted design's scale is chosen from."""
Texts = Int[Tensor, "batch _"]


def own_texts(model: nn.Module, at: str, tokens: tuple[Tensor, ...]) -> Texts:
    """Return the tokens whose vectors reach this attention."""
    names = Names(model)
    names.check_site(at)
    if at.endswith(".cross"):
        raise OptionError(
            f"{at} looks from one sequence at another: designs are fitted to attention within one, such as "
            f"{at.replace('.cross', '.attention')}"
        )
    sides = list(sides_of(model))
    if len(tokens) != len(sides):
        raise OptionError(f"expected token ids for {' and '.join(sides)}; came {len(tokens)} tensors")
    own = tokens[sides.index(side_of(at))]
    check_tokens("tokens", own, names.sides[side_of(at)][1].spec.vocabulary)
    return own


def side_of(at: str) -> str:
    return at.partition(".")[0]


def vectors_reaching(model: nn.Module, *tokens: Texts, at: str) -> Float[Tensor, "batch n d_model"]:
    """Return the vectors that reach an attention when these texts go through the model: after its norm, if any."""
    own_texts(model, at, tokens)
    inputs: list[Tensor] = []
    layer = Names(model).sites[at]
    handle = layer.query.register_forward_hook(lambda _, arguments, __: inputs.append(arguments[0]))
    try:
        with eval_mode(model):
            model(*tokens)
    finally:
        handle.remove()
    return inputs[0].clone().float().cpu()


@public
def fit_position(
    model: nn.Module, *tokens: Texts, at: str, offset: int | None = None, absolute: int | None = None
) -> Design:
    """Return a head that looks `offset` places on, or at the `absolute` place, for this attention of this model.

    If positions are added to the embeddings, keys become waves of their position, and queries the waves of the position
    they look for. With rotary positions, all queries and keys are one vector, rotated against each other by the offset.

    Args:
        model: The model.
        tokens: Texts to measure its inputs on, for each side.
        at: Name of the attention.
        offset: Look this many places on (negative: back).
        absolute: Look at this place.

    Returns:
        The design.

    Raises:
        OptionError: If not exactly one of the two is given, or the positions cannot do it.
    """
    if (offset is None) == (absolute is None):
        raise OptionError("fit_position: give offset or absolute, one of them")
    positions = torch.arange(own_texts(model, at, tokens).shape[1])
    layer = Names(model).sites[at]
    target = torch.full_like(positions, absolute or 0) if offset is None else positions + offset
    codes = turned_codes(layer, offset) if layer.position.turns else wave_codes(layer, positions, target)

    def target_table(n: int) -> Float[Tensor, "query key"]:
        query, key = torch.arange(n).unsqueeze(1), torch.arange(n)
        return (key == query + offset if offset is not None else (key == absolute).expand(n, n)).double()

    asked = AskedScores(places=target_table)
    return fit_maps(model, tokens, at, codes=codes, asked=asked, name=designs.name_place(offset, absolute))


@public
def fit_content(model: nn.Module, *tokens: Texts, at: str) -> Design:
    """Return a head that looks at tokens equal to the query's, itself included, for this attention of this model.

    Args:
        model: The model.
        tokens: Texts to measure its inputs on, for each side.
        at: Name of the attention.

    Returns:
        The design.
    """
    ids = own_texts(model, at, tokens).cpu()
    d_head = Names(model).sites[at].shape.d_head
    vocabulary = sides_of(model)[side_of(at)][1].spec.vocabulary
    table = spread_codes(vocabulary, d_head)
    asked = AskedScores(content=lambda query, key: (query.unsqueeze(1) == key).double())
    return fit_maps(model, tokens, at, codes=(table[ids], table[ids]), asked=asked, name="same token")


def fit_maps(
    model: nn.Module, tokens: tuple[Texts, ...], at: str, *, codes: tuple[Tensor, Tensor], asked: AskedScores, name: str
) -> Design:
    """Return the maps nearest to these codes of queries and keys, at the scale that does best on the texts."""
    x = vectors_reaching(model, *tokens, at=at)
    layer = Names(model).sites[at]
    query, key = codes
    design = Design(
        name=name,
        inputs=Inputs(blocks={}, d_model=layer.d_model),
        asked=asked,
        w_q=fit_linear(x, query),
        w_k=fit_linear(x, key),
        mask=layer.mask,
    )
    return design.scaled(find_best_scale(layer, design, x, own_texts(model, at, tokens)))


def fit_linear(x: Float[Tensor, "batch n d_model"], code: Tensor) -> Float[Tensor, "d_model d_head"]:
    """Return the least-squares map from vectors to codes, with a little ridge towards 0."""
    flat = x.flatten(0, 1).double()
    goal = code.expand(x.shape[0], x.shape[1], -1).flatten(0, 1).double()
    square = flat.T @ flat
    ridge = RIDGE * square.diagonal().mean() * torch.eye(len(square), dtype=torch.float64)
    return torch.linalg.solve(square + ridge, flat.T @ goal).float()


def wave_codes(layer: Attention, positions: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return waves of the wanted place and of the own one; the slowest takes the whole text for one turn."""
    width = layer.shape.d_head // 2 * 2
    if width < 2:
        raise OptionError("a place is told by waves, in pairs: this head has one number, and needs two or more")
    waves = Sinusoidal(base=float(max(len(positions), 2))).embed(width)
    return waves.at(target), waves.at(positions)


def turned_codes(layer: Attention, offset: int | None) -> tuple[Tensor, Tensor]:
    if offset is None:
        raise OptionError("fit_position: this attention knows distances alone (rotary); give an offset")
    ones = torch.ones(1, 1, 1, layer.shape.d_head)
    turned = layer.position.turn(ones, torch.tensor([offset]))
    return turned[0, 0], ones[0, 0]


def spread_codes(count: int, width: int) -> Float[Tensor, "label width"]:
    """Return unit vectors pushed as far apart as a few rounds get them; at right angles where there is room."""
    if count <= width:
        return torch.eye(width)[:count]
    generator = torch.Generator().manual_seed(0)
    codes = nn.functional.normalize(torch.randn(count, width, generator=generator), dim=-1)
    if count > 4096:
        return codes
    for _ in range(ROUNDS):
        close = (codes @ codes.T).fill_diagonal_(0).clamp(min=0) ** 3
        codes = nn.functional.normalize(codes - 0.5 * close @ codes, dim=-1)
    return codes


def find_best_scale(layer: Attention, design: Design, x: Tensor, texts: Texts) -> float:
    """Return the scale that puts most weight on what is wanted, in the mean over the queries of the texts."""
    scored: list[tuple[Tensor, Tensor]] = []
    allowed = design.allowed(texts.shape[1])
    for vectors, ids in zip(x, texts.cpu(), strict=True):
        query, key = ((vectors @ matrix)[None, None] for matrix in (design.w_q, design.w_k))
        positions = torch.arange(len(ids))
        score = layer.position.turn(query, positions) @ layer.position.turn(key, positions).transpose(-1, -2)
        scored.append((score[0, 0].masked_fill(~allowed, -torch.inf), design.asked.targets(ids, ids, allowed)))

    def mean_weight(scale: float) -> float:
        return torch.cat([sharpness.weight_on(score, targets, scale) for score, targets in scored]).mean().item()

    return max(SCALES, key=mean_weight)
