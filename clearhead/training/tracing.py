"""`trace`: a text's way through a trained model, with every number inside it.

```
trace = ch.trace(run, "zweiundvierzig")
trace.decoder[1].cross.head[3].weight       # (query, key)
```
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor

from clearhead.decoding import Beam, Greedy, Rules, Sample
from clearhead.decoding.generating import check_request, collect, decode_on, eval_mode
from clearhead.decoding.request import Model
from clearhead.errors import OptionError
from clearhead.text.tokenizer import Tokenizer
from clearhead.tracing.decoding import trace_decoding
from clearhead.tracing.edited_decoding import EditedSession
from clearhead.tracing.edits import Change
from clearhead.tracing.trace import Answers, Candidate, Trace, trace_model
from clearhead.training import answers
from clearhead.training.run import Run
from clearhead.training.tasks import Classify, Fill, Generate, Translate

__all__ = ["Params", "asked_of", "trace"]

MAX_NEW = 64
"""How much of a text is written where a method is given and the run has no end of its own."""
OWN_OUTPUT = "the target is its own greedy output"


class Params(NamedTuple):
    """A text as a model is given it: the ids of each side, and how each piece is shown."""

    ids: dict[str, list[int]]
    pieces: dict[str, list[str]]


def trace(
    run: Run,
    source: str,
    target: str | Sequence[int] | None = None,
    *,
    edits: Sequence[Change] = (),
    method: Greedy | Sample | Beam | None = None,
) -> Trace:
    """The trace of a text. To translate, `target` None is the model's own greedy output, and a note says so.

    A language model reads the source and, after it, the target. `edits` change what happens inside; an own output is
    then what the changed model writes. With a `method` what is written is traced as it was, step by step on a cache;
    of a beam `beams` has the trace of every output.
    """
    if method is not None:
        return written(run, source, method, target, edits)
    asked = asked_of(run, source, target)
    own = isinstance(run.task, Translate) and target is None
    if own:
        asked = with_own_output(run, asked, edits)
    made = trace_model(run.model, *tensors_of(run, asked), changes=edits, pieces=asked.pieces)
    made = named(run, made)
    return made.noted(OWN_OUTPUT + (", as changed" if edits else "")) if own else made


def asked_of(run: Run, source: str, target: str | Sequence[int] | None = None) -> Params:
    """The text as the run's model takes it; raises where it cannot be given."""
    task = run.task
    blank = not source.strip() and not (isinstance(task, Generate) and target)
    if blank:
        raise OptionError("there is no text to trace: expected one; came a blank one")
    if target is not None and not isinstance(task, Translate | Generate):
        raise OptionError(f"{run.folder.path} was trained to {task.name}: its text has no target; leave it out")
    if isinstance(task, Translate):
        return translating(task, source, target)
    if isinstance(task, Generate):
        return going_on(run, task, source, target)
    tokenizer = task.tokenizers["text"]
    if isinstance(task, Fill):
        text = answers.with_blanks(task, source) if answers.BLANK in source else tokenizer.encode(source)
        ids = fits(run, [tokenizer.start, *text, tokenizer.end])
    else:
        ids = fits(run, [tokenizer.start, *tokenizer.encode(source)])
    return Params({"encoder": ids}, {"encoder": shown(tokenizer, ids)})


def translating(task: Translate, source: str, target: str | Sequence[int] | None) -> Params:
    reads, writes = task.tokenizers["source"], task.tokenizers["target"]
    read = reads.encode(source)
    wanted = [] if target is None else writes.encode(target) if isinstance(target, str) else list(target)
    for name, row in (("source", read), ("target", wanted)):
        if len(row) >= task.context:
            raise OptionError(f"the {name} has {len(row)} tokens, and the model reads {task.context - 1}; shorten it")
    ids = {"encoder": [*read, reads.end], "decoder": [writes.start, *wanted]}
    return Params(ids, {"encoder": shown(reads, ids["encoder"]), "decoder": shown(writes, ids["decoder"])})


def going_on(run: Run, task: Generate, source: str, target: str | Sequence[int] | None) -> Params:
    tokenizer = task.tokenizers["text"]
    read = tokenizer.encode(source)
    if isinstance(target, str):
        read = tokenizer.encode(source + target)
    elif target is not None:
        read = [*read, *target]
    ids = fits(run, [tokenizer.end, *read] if run.opens or not read else read)
    return Params({"decoder": ids}, {"decoder": shown(tokenizer, ids)})


def fits(run: Run, ids: list[int]) -> list[int]:
    if len(ids) > run.task.context:
        raise OptionError(
            f"the text has {len(ids)} tokens, and the model was trained to read {run.task.context}; shorten it"
        )
    return ids


def shown(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The pieces as they are shown, special ones by their names."""
    special = {
        tokenizer.start: "<s>",
        tokenizer.end: "</s>",
        tokenizer.mask: "<mask>",
        tokenizer.pad: "<pad>",
        tokenizer.unknown: "<unk>",
    }
    return [special.get(token) or tokenizer.pieces([token])[0] for token in ids]


def tensors_of(run: Run, asked: Params) -> list[Tensor]:
    device = next(run.model.parameters()).device
    return [torch.tensor([row], device=device) for row in asked.ids.values()]


def with_own_output(run: Run, asked: Params, edits: Sequence[Change]) -> Params:
    """The source with the model's greedy translation of it, changed as the edits have it."""
    task = run.asked(Translate)
    writes, source = task.tokenizers["target"], asked.ids["encoder"]
    if not edits:
        [[found]] = answers.translate(run.model, task, [source[:-1]])
        tokens = [token for token in found.tokens if token != writes.end]
    else:
        tokens = changed_output(run, task, source, edits)
    ids = [writes.start, *tokens[: task.context - 1]]
    return Params(asked.ids | {"decoder": ids}, asked.pieces | {"decoder": shown(writes, ids)})


def changed_output(run: Run, task: Translate, source: list[int], edits: Sequence[Change]) -> list[int]:
    """Return the greedy output of the changed model, without its end token."""
    writes = task.tokenizers["target"]
    rules = Rules(max_new=min(task.context, answers.reach(len(source))) - 1, end=(writes.end,))
    request = check_request(cast(Model, run.model), [source], [[writes.start]], rules, 0)
    with eval_mode(run.model):
        session = EditedSession(request, edits)
        [[found]] = collect(decode_on(session, request.prompts, Greedy(), rules, 0), 1)
    return [token for token in found.tokens if token != writes.end]


def written(
    run: Run, source: str, method: Greedy | Sample | Beam, target: str | Sequence[int] | None, edits: Sequence[Change]
) -> Trace:
    """What the method writes, traced step by step."""
    if target is not None or edits:
        raise OptionError("a method writes the target itself, unchanged: leave out target and edits, or the method")
    if not isinstance(run.task, Translate | Generate):
        raise OptionError(f"{run.folder.path} was trained to {run.task.name}, and writes nothing; leave out the method")
    asked = asked_of(run, source)
    if isinstance(run.task, Translate):
        tokenizer, inputs = run.task.tokenizers["target"], asked.ids["encoder"]
        rules = Rules(max_new=min(run.task.context, answers.reach(len(inputs))), end=(tokenizer.end,))
        found = trace_decoding(run.model, inputs, method, rules=rules, prefix=[tokenizer.start])  # type: ignore[arg-type]
    else:
        tokenizer, inputs = run.task.tokenizers["text"], asked.ids["decoder"]
        room = run.task.context - len(inputs) + 1
        if room < 1:
            raise OptionError(f"the text fills the context of {run.task.context} tokens; shorten it to write more")
        rules = Rules(max_new=min(MAX_NEW, room), end=(tokenizer.end,) if run.opens else ())
        found = trace_decoding(run.model, inputs, method, rules=rules)  # type: ignore[arg-type]
    traces = tuple(named(run, with_pieces(one.trace, asked, tokenizer)) for one in found)
    return replace(traces[0], beams=traces if isinstance(method, Beam) else ())


def with_pieces(made: Trace, asked: Params, tokenizer: Tokenizer) -> Trace:
    pieces = asked.pieces | {"decoder": shown(tokenizer, made.sides["decoder"].ids)}
    return replace(made, sides={name: replace(side, tokens=pieces[name]) for name, side in made.sides.items()})


def named(run: Run, made: Trace) -> Trace:
    """With the run's task, and its words for what the model may answer."""
    task = run.task
    words = task.labels if isinstance(task, Classify) else None
    tokenizer = list(task.tokenizers.values())[-1]

    def candidates() -> list[list[Candidate]]:
        found = made.answers.likeliest
        ids = sorted({one.id for row in found for one in row})
        texts = [words[i] for i in ids] if words else shown(tokenizer, ids)
        text = dict(zip(ids, texts, strict=True))
        return [[one._replace(text=text[one.id]) for one in row] for row in found]

    return replace(made, task=task.name, answers=Answers(candidates))
