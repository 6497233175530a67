"""A trace as the page asks about it: its parts as plain data or tensors, every request checked."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar, final

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from clearhead.errors import OptionError
from clearhead.lru_cache import LRUCache
from clearhead.model.transformers import Transformer
from clearhead.serve import messages
from clearhead.serve.boxes import Boxes
from clearhead.serve.budget import FLOAT, JSON_NUMBER, JSON_OBJECT, Budget, Cost
from clearhead.serve.costs import LOGITS, ModelCosts, row_cost, rows_cost
from clearhead.serve.meta import as_candidates, meta_of
from clearhead.serve.params import Params
from clearhead.serve.trace_request import TraceRequest
from clearhead.tracing.edits import Change
from clearhead.tracing.head_metrics import effects, lens, readings
from clearhead.tracing.recording import recording
from clearhead.tracing.sequence_diagram import MOST_QUERIES, draw_sequence, exchange_of
from clearhead.tracing.site import ALLOWED, MATRICES, TILE, Head, Site
from clearhead.tracing.spaces import compare_spaces
from clearhead.tracing.trace import LIKELIEST, ROWS, Candidate, Trace
from clearhead.training.run import Run
from clearhead.training.tracing import encode_inputs

Matrix = Float[Tensor, "query key"]
Made = TypeVar("Made")
THUMB = 48
"""The most rows and columns of a thumbnail."""
MOST_SHADE, MASKED = 254, 255
"""Bytes of a thumbnail: of weight 1, and of a masked place."""
SAMPLED = 8
"""The most rows that a row of a thumbnail is made of: of a long text the others are left out."""
COARSEST = 24
TILES = 96
"""The number of tiles of a trace in the cache."""
TEXT = "trace a shorter text"
LENS = 5
"""The number of candidates of each layer and token in the logit lens."""
MOST_COMPARED, MOST_COLUMNS = 24, 100
"""The most tokens that are compared with each other in one answer."""
LEAST_ROWS = 64
"""The fewest rows of a long text that the metrics of a head are read from."""
ROLLOUT = "rollout"
"""The name of a rollout among the tiles."""
MULTIPLIED = 1000
"""Products of a matrix multiplication in the time in which one weight is rebuilt."""
ROLES = ("query", "key", "value", "context")


@final
class Traced:
    """A trace, the run it was made with and the request it answers."""

    def __init__(self, request: TraceRequest, run: Run, trace: Trace, budget: Budget = Budget()) -> None:
        self.request, self.run, self.trace, self.budget = request, run, trace, budget
        self.costs = ModelCosts(run.model)
        self.lengths = {name: len(side.ids) for name, side in trace.sides.items()}
        self.cached: dict[str, Any] = {}
        self.tiles = LRUCache[tuple[object, ...], Tensor](most=TILES)

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """Return a value that is computed when it is first asked for."""
        if name not in self.cached:
            self.cached[name] = make()
        return self.cached[name]

    @property
    def nbytes(self) -> int:
        """Return the bytes it holds: the trace, the answers at each token, and the cached tiles."""
        tiles = sum(tile.nbytes for tile in self.tiles.values.values())
        return self.costs.trace(self.lengths, self.trace.changes).memory + tiles

    def meta(self) -> dict[str, Any]:
        return self.once("meta", lambda: meta_of(self.request, self.run, self.trace))

    def site(self, params: Params) -> Site:
        return self.trace[params.text("site")]

    def heads(self, params: Params) -> list[Head]:
        """Return the head that is asked for, or all of them for their mean."""
        site = self.site(params)
        return site.head if params.values.get("head") == "mean" else [self.head(params)]

    def head(self, params: Params) -> Head:
        site = self.site(params)
        return site.head[params.integer("head", below=site.n_heads)]

    def tile(self, params: Params) -> Matrix:
        """Return the largest of each 2^level x 2^level cells; of the mean, the mean of the heads' tiles."""
        if params.integer("rollout", below=2, default=0):
            return self.rollout_tile(params)
        heads, step = self.heads(params), params.one_of("step", (*MATRICES, ALLOWED))
        level = params.integer("level", below=COARSEST, default=0)
        row, column = params.integer("row", default=0), params.integer("column", default=0)

        rows, _ = heads[0].tile_range(level, row, column)
        cost = rows_cost(heads, len(rows), kept=min(TILE, heads[0].site.n_key))
        self.budget.check(cost, f"this tile of {name_heads(heads)}", "zoom in" if level else "ask for one head")

        def tile(head: Head) -> Matrix:
            name = params.text("site"), head.index, step, level, row, column
            return self.tiles.get_or_make(name, lambda: head.tile(step, level, row, column))

        return mean_of([tile(head) for head in heads])

    def rollout_tile(self, params: Params) -> Matrix:
        """Return a tile of the attention rollout up to a site. It may reach what the site's own mask hides: its mask is
        where anything reaches at all.
        """
        site, step = self.site(params), params.one_of("step", (*MATRICES, ALLOWED))
        level = params.integer("level", below=COARSEST, default=0)
        rows, columns = site.head[0].tile_range(
            level, params.integer("row", default=0), params.integer("column", default=0)
        )
        if step not in ("weight", ALLOWED):
            raise OptionError(f"weights are rolled out, over the layers; there is no {step} of a rollout")
        sites = [other for other in self.trace.sites.values() if other.slot == "attention"]
        cells = sum(other.n_query**2 * (other.n_heads + other.n_query // MULTIPLIED) for other in sites)
        cost = Cost(cells=cells, memory=4 * max(site.n_query, site.n_key) ** 2 * FLOAT)
        self.budget.check(cost, f"the rollout up to {site.name}", TEXT)
        rollout = self.tiles.get_or_make((ROLLOUT, site.name), lambda: self.trace.rollout(site.name))
        part = rollout[rows.start : rows.stop, columns.start : columns.stop]
        part = (part > 0).float() if step == ALLOWED else part
        square = min(1 << level, len(rows)), min(1 << level, len(columns))
        return F.max_pool2d(part[None], square, ceil_mode=True)[0] if level else part

    def thumbs(self, params: Params) -> UInt8[Tensor, "head row column"]:
        site = self.site(params)
        rows = min(site.n_query, THUMB * SAMPLED)
        # rows of a head are held at once with their mask, before they are made small
        cost = rows_cost(site.head, rows) + Cost(memory=rows * site.n_key * 3 * FLOAT)
        self.budget.check(cost, f"the thumbnails of {site.name}", TEXT)
        return self.once(f"thumbs {site.name}", lambda: torch.stack([thumb(head) for head in site.head]))

    def row(self, params: Params) -> dict[str, Any]:
        heads = self.heads(params)
        query = params.integer("query", below=heads[0].site.n_query)
        self.budget.check(row_cost(heads), f"a row of {name_heads(heads)}", "ask for one head, or trace a shorter text")
        rows = [head.rows(query, query + 1) for head in heads]
        if len(rows) > 1 or params.values.get("head") == "mean":
            return {"weight": mean_of([row_steps.weight for row_steps in rows])[0].tolist()}
        [steps] = rows
        numbers = {name: getattr(steps, name)[0].tolist() for name in ("query", *MATRICES, "context")}
        return {**numbers, "allowed": heads[0].allowed(query, query + 1)[0].tolist()}

    def column(self, params: Params) -> messages.Column:
        heads = self.heads(params)
        key, n = params.integer("key", below=heads[0].site.n_key), heads[0].site.n_query
        cost = rows_cost(heads, n, kept=1) + Cost(memory=n * JSON_NUMBER)
        self.budget.check(cost, f"a column of {name_heads(heads)}", "ask for one head, for rows, or for a tile of it")
        return {"weight": mean_of([head.column(key) for head in heads]).tolist()}

    def cell(self, params: Params) -> dict[str, Any]:
        head = self.head(params)
        query, key = params.integer("query", below=head.site.n_query), params.integer("key", below=head.site.n_key)
        self.budget.check(row_cost([head]), f"a cell of {name_heads([head])}", TEXT)
        sizes = {"n_query": head.site.n_query, "n_key": head.site.n_key}
        return {**asdict(head.cell(query, key)), **self.read_by(head, query, key), **sizes}

    def read_by(self, head: Head, query: int, key: int) -> dict[str, Any]:
        """Return what the head reads of the query's input (the stream before the site, after the norm in front of it),
        where that begins, and the latent value of the key.
        """
        query_map, latent = self.boxes.inner.names.input_map(head.site.name, "query"), f"{head.site.name}.latent_value"
        reads = query_map.reads(head.index)
        return {
            "input": self.trace.value(query_map.of, slice(query, query + 1))[0, reads].tolist(),
            "input_start": reads.start,
            "latent": self.trace.value(latent, slice(key, key + 1))[head.index, 0].tolist()
            if latent in self.boxes.values
            else None,
        }

    @functools.cached_property
    def boxes(self) -> Boxes:
        return Boxes(self.trace)

    def box(self, params: Params) -> dict[str, Any]:
        """Return every number of a box for one token; of an output, also the words of its likeliest units."""
        self.check_box()
        numbers, site = self.boxes.numbers(params), self.trace.sites.get(params.text("box"))
        probability = numbers.get(f"{self.trace.answer_side}.output.probability")
        return {
            "values": numbers,
            "constants": {} if site is None else {"scale": site.head[params.integer("head", default=0)].scale},
            "labels": {} if probability is None else self.labels(probability),
        }

    def labels(self, probability: list[float]) -> dict[int, str]:
        """Return the words of the likeliest units."""
        best = sorted(range(len(probability)), key=lambda unit: -probability[unit])[:LIKELIEST]
        return {
            candidate.id: candidate.text for candidate in self.with_names([Candidate(unit, "", 0.0) for unit in best])
        }

    def check_box(self) -> None:
        """Check the cost of a box for one token. In a changed model it is computed for all tokens together."""
        rows = max(self.lengths.values()) if self.trace.changes else 1
        sites = [row_cost(site.head) for site in self.trace.sites.values()]
        row = max(sites, key=lambda cost: cost.memory)
        self.budget.check(self.costs.box(rows) + row, "the numbers of this box", TEXT)

    def terms(self, params: Params) -> messages.BoxTerms:
        self.check_box()
        return self.boxes.terms(params)

    def vectors(self, params: Params) -> Float[Tensor, "n d"]:
        if params.values.get("name") is not None:
            name = params.text("name")
            if name not in self.trace.stream:
                names = ", ".join(self.trace.stream)
                raise OptionError(f"there is no {name[:80]!r} in this trace's stream; there are {names}")
            vectors = self.trace.stream[name]
            self.budget.check(Cost(memory=3 * vectors.numel() * FLOAT), f"all vectors of {name}", TEXT)
            return vectors
        head, role = self.head(params), params.one_of("role", ROLES)
        site = head.site
        numbers = max(site.n_query, site.n_key) * max(site.d_head, site.d_value) + site.recorded_context.numel()
        self.budget.check(Cost(memory=3 * numbers * FLOAT), f"all vectors of {name_heads([head])}", TEXT)
        return getattr(head, role)

    def readings(self, params: Params) -> dict[str, Any]:
        """Return the metrics of the heads of one site, or of all; of a long text, from no more than `rows` queries."""
        single = params.values.get("site") is not None
        sites = [self.site(params)] if single else list(self.trace.sites.values())
        rows = params.maybe_whole("rows", least=LEAST_ROWS)
        costs = [
            rows_cost(site.head, site.n_query if rows is None else min(rows, site.n_query), kept=1) for site in sites
        ]
        cost = functools.reduce(Cost.__add__, costs)
        action = f"reading every weight of {sites[0].name}" if single else "reading every weight of all attentions"
        self.budget.check(cost, action, TEXT if single else "ask for one attention")
        return {site.name: self.read(site, rows) for site in sites}

    def read(self, site: Site, rows: int | None) -> dict[str, list[float | None]]:
        sampled = rows if rows is not None and rows < site.n_query else None
        return self.once(f"readings {site.name} {sampled}", lambda: self.make_readings(site, sampled))

    def make_readings(self, site: Site, rows: int | None) -> dict[str, list[float | None]]:
        heads = [asdict(head) for head in readings(self.trace, site, rows)]
        return {name: [head[name] for head in heads] for name in heads[0]}

    def lens(self, params: Params) -> dict[str, Any]:
        n, layers = self.lengths[self.trace.answer_side], self.trace.sides[self.trace.answer_side].n_layers + 2
        logits = n * layers * self.costs.logits
        cost = Cost(
            cells=logits // LOGITS, memory=n * layers * LENS * JSON_OBJECT + ROWS * self.costs.logits * JSON_NUMBER
        )
        self.budget.check(cost, "what each layer would answer at each token", TEXT)
        return self.once("lens", self.make_lens)

    def make_lens(self) -> dict[str, Any]:
        layers = [
            {"name": layer.name, "rows": [as_candidates(self.with_names(row)) for row in layer.rows]}
            for layer in lens(self.trace, self.model, shown=LENS)
        ]
        return {"side": self.trace.answer_side, "layers": layers}

    def with_names(self, row: Sequence[Candidate]) -> list[Candidate]:
        """Return candidates with their words in place of their numbers."""
        names = self.run.task.answer_names([candidate.id for candidate in row])
        return [candidate._replace(text=name) for candidate, name in zip(row, names, strict=True)]

    def effects(self, params: Params) -> messages.Effects:
        site = self.site(params)
        forward = self.costs.forward(self.lengths, self.trace.changes)
        cost = Cost(cells=forward.cells * (1 + site.n_heads), memory=2 * forward.memory)
        self.budget.check(cost, f"running the model without each head of {site.name}", TEXT)
        return self.once(f"effects {site.name}", functools.partial(self.make_effects, site))

    def make_effects(self, site: Site) -> messages.Effects:
        head_effects = effects(self.model, self.logits, site.name, site.n_heads, self.trace.changes)
        return {
            "effects": [
                {"head": effect.head, "change": effect.change, "kl": effect.divergence} for effect in head_effects
            ]
        }

    def logits(self, changes: Sequence[Change]) -> Tensor:
        """Return the logits of the same tokens with other changes."""
        device = next(self.model.parameters()).device
        rows = [torch.tensor([side.ids], device=device) for side in self.trace.sides.values()]
        segments = encode_inputs(self.run, self.request.source, self.request.target).segments
        apart = {} if segments is None else {"segments": torch.tensor([segments], device=device)}
        with recording(self.model, changes):
            return self.model(*rows, **apart)

    @property
    def model(self) -> Transformer:
        return self.run.model

    def spaces(self, params: Params) -> dict[str, Any]:
        """Return how alike tokens are as embeddings, as queries and keys, and as values."""
        site, head = self.site(params), self.head(params)
        places = params.wholes("places", most=MOST_COMPARED)
        self.budget.check(rows_cost([head], len(places), kept=4), "comparing these tokens", "compare fewer")
        spaces = compare_spaces(self.trace, site.name, head.index, places)
        tables = {name: getattr(spaces, name).tolist() for name in ("embedding", "query_key", "score", "value")}
        return {"places": list(spaces.places), "tokens": list(spaces.tokens), **tables}

    def sequence(self, params: Params) -> messages.Sequence:
        """Return one attention step as a sequence diagram."""
        head = self.head(params)
        site = head.site
        query = params.integer("query", below=site.n_query)
        key_side = "encoder" if site.slot == "cross" else site.side
        few = site.n_query <= MOST_QUERIES
        self.budget.check(row_cost([head], MOST_QUERIES), f"the diagram of {name_heads([head])}", TEXT)
        steps = head.rows() if few else head.rows(query, query + 1)
        tokens = [self.trace.sides[side].tokens for side in (site.side, key_side)]
        shown_queries = tokens[0] if few else [tokens[0][query]]
        exchange = exchange_of(
            f"{site.name}, head {head.index}",
            f"Followed: {tokens[0][query]}.",
            (shown_queries, tokens[1]),
            steps,
            query if few else 0,
            scale=head.scale,
            allowed=head.allowed(0, site.n_query) if few else head.allowed(query, query + 1),
            weighting=site.weighting.called,
            formula=site.similarity.formula,
            columns=params.integer("columns", below=MOST_COLUMNS, default=MOST_COLUMNS),
        )
        return {"svg": draw_sequence(exchange, standalone=False)}

    def stream(self, params: Params) -> messages.Stream:
        """Return how long each vector of the residual stream is, and its cosine with the token's own embedding."""
        side = params.one_of("side", tuple(self.trace.sides))
        names = [name for name in self.trace.stream if name.startswith(f"{side}.")]
        cost = Cost(memory=len(names) * self.lengths[side] * (2 * JSON_NUMBER + self.trace.sides[side].d_model * FLOAT))
        self.budget.check(cost, f"the stream of the {side}", TEXT)
        embedding = self.trace.value(f"{side}.embedding.token").float()
        values = [(name, self.trace.value(name).float()) for name in names]
        return {
            "rows": [
                {
                    "name": name,
                    "norm": value.norm(dim=-1).tolist(),
                    "cosine": F.cosine_similarity(value, embedding, dim=-1).tolist(),
                }
                for name, value in values
            ]
        }


def name_heads(heads: Sequence[Head]) -> str:
    """Return the name of a head, or of all heads of a site."""
    site = heads[0].site.name
    return f"{site}, head {heads[0].index}" if len(heads) == 1 else f"all {len(heads)} heads of {site}"


def mean_of(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.stack(list(tensors)).mean(0)


def thumb(head: Head) -> UInt8[Tensor, "row column"]:
    """Return the head's weights, small: the largest of each square, of a long text from a few rows of it.

    A byte is 254 times the square root of the weight, so that small weights of a long text differ too. It
    is 255 where every key of the square is masked.
    """
    n_query, n_key = head.site.n_query, head.site.n_key
    height, width = -(-n_query // THUMB), -(-n_key // THUMB)
    if height <= SAMPLED:
        bands = [torch.cat([rows.weight for rows in head.blocks(range(n_query))])]
        allowed = [head.allowed(0, n_query)]
    else:
        starts = range(0, n_query, height)
        bands = [head.rows(start, start + SAMPLED).weight for start in starts]
        allowed = [head.allowed(start, min(start + SAMPLED, n_query)) for start in starts]
        height = SAMPLED
    small = [
        F.max_pool2d(band.masked_fill(~may, float("-inf"))[None], (min(height, len(band)), width), ceil_mode=True)[0]
        for band, may in zip(bands, allowed, strict=True)
    ]
    largest = torch.cat(small)
    shade = (largest.clamp(0, 1).sqrt() * MOST_SHADE).round()
    return shade.masked_fill(largest == float("-inf"), MASKED).to(torch.uint8)
