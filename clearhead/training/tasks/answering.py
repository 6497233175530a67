"""What answers: lines and pairs of text, with one pass or by decoding, the same for Run, command line and server.

What the answers of all tasks share: batches of similar length, the text that token ids stand for, and verbs that
take one text, a str, or several.

A text's answer does not depend on the texts beside it.
"""

import functools
import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_args,
    overload,
    runtime_checkable,
)

from torch import Tensor

from clearhead.calls import public
from clearhead.decoding import Rules, generating, session
from clearhead.decoding.method import DecodingMethod
from clearhead.decoding.scheduler import Job
from clearhead.errors import OptionError
from clearhead.model.transformers import Transformer
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.tasks.texts import Framing, TaskTexts

Result = TypeVar("Result")
ON_CPU, ON_GPU = 4096, 65_536
"""Tokens of a batch, hypotheses counted."""


class Written(NamedTuple):
    """A text, its log-probability, and the score it was ranked by: in a beam, that over a power of its length."""

    text: str
    log_prob: float
    score: float


def in_batches(
    lengths: Sequence[int],
    model: Transformer,
    answer: Callable[[list[int]], list[Result]],
    *,
    width: int = 1,
    apart: Callable[[int], int] = lambda length: 0,
) -> list[Result]:
    """Return the answers to rows of these lengths, in order. `answer` is asked for a few at a time, by number.

    Rows of similar length go together, and only those of lengths that `apart` makes the same of.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    tokens = (ON_GPU if next(model.parameters()).device.type == "cuda" else ON_CPU) // width
    answers: dict[int, Result] = {}
    for batch in cut(order, lengths, tokens, apart):
        answers |= zip(batch, answer(batch), strict=True)
    return [answers[i] for i in range(len(lengths))]


def cut(order: Sequence[int], lengths: Sequence[int], tokens: int, apart: Callable[[int], int]) -> Iterator[list[int]]:
    """Yield the numbers of rows in batches of about so many tokens."""
    batch: list[int] = []
    for i in order:
        full = (len(batch) + 1) * max(lengths[i], 16) > tokens
        if batch and (full or apart(lengths[i]) != apart(lengths[batch[0]])):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def continued(tokenizer: Tokenizer, before: Sequence[int], tokens: Sequence[int]) -> str:
    """Return the text of tokens that follow others: a space between the two belongs to it."""
    first, joined = tokenizer.decode(before), tokenizer.decode([*before, *tokens])
    return joined[len(first) :] if joined.startswith(first) else tokenizer.decode(tokens)


def one_line(text: str) -> str:
    """Return the text with its ends of line as spaces.

    >>> one_line("to be,\\r\\nor not")
    'to be, or not'
    """
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")


def token_names(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the pieces of text that tokens stand for, special tokens by their names.

    Those of an imported model have its own names, except the mask: a blank is written `<mask>` everywhere.
    """
    special = {tokenizer.mask: "<mask>"}
    if tokenizer.imported is None:
        special |= {
            tokenizer.start: "<s>",
            tokenizer.end: "</s>",
            tokenizer.pad: "<pad>",
            tokenizer.unknown: "<unk>",
        }
    return [special.get(token) or tokenizer.pieces([token])[0] for token in ids]


Item_contra = TypeVar("Item_contra", contravariant=True)
Reply = TypeVar("Reply")
Options = ParamSpec("Options")


@runtime_checkable
class BoundVerb(Protocol, Generic[Item_contra, Options, Reply]):
    """A verb of one run: a str gives one answer."""

    @overload
    def __call__(self, texts: str = "", /, *args: Options.args, **options: Options.kwargs) -> Reply: ...
    @overload
    def __call__(
        self, texts: Iterable[Item_contra], /, *args: Options.args, **options: Options.kwargs
    ) -> list[Reply]: ...  # pyright: ignore[reportOverlappingOverload] - a str is told apart first


@runtime_checkable
class Verb(Protocol, Generic[Item_contra, Options, Reply]):
    """A verb in the class: `run.verb` is a `BoundVerb`."""

    def __get__(self, run: Any, owner: Any = None) -> BoundVerb[Item_contra, Options, Reply]: ...


def one_or_several(
    check: Callable[[str, object], Item_contra],
) -> Callable[
    [Callable[Concatenate[Any, Sequence[Item_contra], Options], list[Reply]]], Verb[Item_contra, Options, Reply]
]:
    """Let a verb that answers a list of texts answer one str too. `check` raises for an item that is no text."""

    def decorate(verb: Callable[..., list[Any]]) -> Verb[Any, Any, Any]:
        answer_all, signature = public(verb), inspect.signature(verb)
        name, parameter = list(signature.parameters.items())[1]

        @functools.wraps(verb)
        def ask(run: Any, *args: Any, **options: Any) -> Any:
            texts = args[0] if args else options.get(name, parameter.default)
            if texts is parameter.empty:
                return answer_all(run, **options)  # which raises: there are no texts
            rest = {key: value for key, value in options.items() if key != name or args}
            if isinstance(texts, str):
                [answer] = answer_all(run, [texts], *args[1:], **rest)
                return answer
            return answer_all(run, check_list(name, texts, check), *args[1:], **rest)

        shown = [
            each.replace(annotation=str | each.annotation) if each.name == name else each
            for each in signature.parameters.values()
        ]
        [answer_type] = get_args(signature.return_annotation)
        vars(ask)["__signature__"] = signature.replace(
            parameters=shown, return_annotation=answer_type | signature.return_annotation
        )
        return cast(Verb[Any, Any, Any], ask)

    return decorate


def check_list(name: str, texts: object, check: Callable[[str, object], Item_contra]) -> list[Item_contra]:
    """Return several texts as a list, after checking each; OptionError if they are none."""
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Tensor):
        raise OptionError(f"{name}: expected a str, or several of them in a list; came {type(texts).__name__}")
    return [check(f"{name}[{index}]", text) for index, text in enumerate(texts)]


def check_max_new(max_new: object) -> int:
    if not isinstance(max_new, int) or isinstance(max_new, bool) or max_new < 1:
        raise OptionError(f"max_new: at least one token must be asked for, a whole number; came {max_new!r:.80}")
    return max_new


def check_text(name: str, text: object) -> str:
    if not isinstance(text, str):
        raise OptionError(f"{name}: expected a text, a str; came {text!r:.80}")
    return text


def check_text_or_pair(name: str, text: object) -> str | tuple[str, str]:
    if isinstance(text, str):
        return text
    if not isinstance(text, tuple | list) or len(text) != 2 or not all(isinstance(part, str) for part in text):
        raise OptionError(f"{name}: expected a text, a str, or a pair of two; came {text!r:.80}")
    return text[0], text[1]


Answer = dict[str, Any]
"""What is answered to a line: `output`, and whatever else `--json` tells."""
Pair = tuple[str, str]
Made = TypeVar("Made")


class FramedItems(NamedTuple):
    """The ids of texts or pairs, each framed as one row; the segment of each token of pairs, if the model has any."""

    rows: list[list[int]]
    segments: list[list[int]] | None = None


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """What is decoded from, and what the output may be. `before`: ids of the text that an output follows."""

    source: list[int]
    prefix: list[list[int]] | None
    rules: Rules
    writes: Tokenizer
    before: list[int]


@dataclass(frozen=True, kw_only=True)
class WritingOptions:
    """What is asked of an output. `rules` None: the task's own; otherwise it adds what ends its texts and what is
    never in them. `framing` None: the usual one of the task's texts.
    """

    rules: Rules | None = None
    candidates: int = 0
    framing: Framing | None = None


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A text to decode. `before`: ids of the text that the output continues.

    An output longer than the model's context is several jobs, one after another: `following` is asked with the tokens
    so far for the next one, and returns None if there is none.
    """

    first: Job
    following: Callable[[Sequence[int]], Job | None]
    tokenizer: Tokenizer
    before: Sequence[int]
    unread: int = 0
    """Tokens that the model does not read, since there are too many."""

    @property
    def prompt_tokens(self) -> int:
        return len(self.first.inputs)

    def row(self, tokens: Sequence[int]) -> list[int]:
        """Return the decoder's ids with an output's tokens, without the token that ends it."""
        begun = self.first.inputs if self.first.prefix is None else self.first.prefix
        return [*begun, *(token for token in tokens if token not in self.first.rules.end)]


class Answering(TaskTexts):
    """How a run answers texts."""

    verb: ClassVar[str] = "answer"
    """The command that answers lines."""
    trial: ClassVar[str] = "echo 'a line of text' | clearhead VERB {run}"
    """A command to try with a run."""
    target: ClassVar[Literal["none", "writes", "continues"]] = "none"
    """Whether a text has a target: none; one that the model writes; or one that continues the text."""
    routes: ClassVar[tuple[str, ...]] = ()
    """Addresses of the API that a run of it answers at, beside /v1/answer: /v1/translate and /v1/completions decode its
    `passage`, /v1/classify and /v1/fill tell the `entry` of its answers."""
    exports_as: ClassVar[str] = ""
    """The task that other programs know it as, if it is not its own."""
    chats: ClassVar[bool] = False
    """Whether its texts may be conversations: a run's chat template then lays them out."""

    @abstractmethod
    def answer(self, model: Transformer, texts: Sequence[str]) -> list[Answer]:
        """Return the answer to each text, with the usual options. Texts are not blank."""

    def answer_pairs(self, model: Transformer, pairs: Sequence[Pair]) -> list[Answer]:
        """Return what `answer` does for pairs of texts, where the task takes any."""
        raise OptionError(f"to {self.name} takes single texts, and no pairs; give each as a text")

    def answer_items(self, model: Transformer, items: Sequence[str | Pair]) -> list[Answer]:
        """Return the answers to texts, or to pairs of them; the answer to a blank one is blank."""
        asked = [i for i, item in enumerate(items) if "".join(item).strip()]
        texts, pairs = texts_and_pairs([items[i] for i in asked])
        found = self.answer_pairs(model, pairs) if pairs else self.answer(model, texts) if texts else []
        answers: list[Answer] = [{"output": ""} for _ in items]
        for i, answer in zip(asked, found, strict=True):
            answers[i] = answer
        return answers

    def entry(self, answer: Answer) -> dict[str, Any]:
        """Return an answer in the form of the task's own address; that to a blank text has nothing but its output."""
        return answer

    def check_line(self, line: str) -> object:
        """Raise OptionError for a line that cannot be answered, such as one that is no pair of texts."""
        return line

    def opener(self) -> list[int]:
        """Return the ids that a text which would be empty begins with, where the model goes on from it."""
        return []

    def frame_items(self, model: Transformer, items: Sequence[str | Pair]) -> FramedItems:
        """Return texts, or pairs of them, as the model reads them. What is too long is cut, the longer of two first."""
        frame, (texts, pairs) = self.frame(), texts_and_pairs(items)
        if not pairs:
            return FramedItems([frame.around(row, self.reads) for row in self.tokenizer.encode_batch(texts)])
        first, second = (self.tokenizer.encode_batch([pair[i] for pair in pairs]) for i in (0, 1))
        framed = [frame.around_pair(a, b, self.context) for a, b in zip(first, second, strict=True)]
        has_segments = model.stacks[0].spec.embedding.segments is not None
        return FramedItems([ids for ids, _ in framed], [apart for _, apart in framed] if has_segments else None)

    def in_passes(
        self,
        model: Transformer,
        compute: Callable[..., Iterable[Made]],
        rows: Sequence[Sequence[int]],
        segments: Sequence[Sequence[int]] | None = None,
    ) -> list[Made]:
        """Return what `compute` makes of each row of ids, in order: it is given the tokens of a padded batch, their
        `lengths`, and `segments` if there are any.
        """
        device = next(model.parameters()).device

        def answer(batch: list[int]) -> list[Made]:
            tokens, lengths = session.pad_right([rows[i] for i in batch], device)
            apart = {} if segments is None else {"segments": session.pad_right([segments[i] for i in batch], device)[0]}
            with generating.eval_mode(model):
                return list(compute(tokens, lengths=lengths, **apart))

        return in_batches([len(row) for row in rows], model, answer)

    def predict(
        self, model: Transformer, rows: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None
    ) -> list[Tensor]:
        """Return the logits for each row of ids, in order: what an answer is made of where one pass is enough.

        `segments` has the segment of each token, for a model that tells two texts apart by them.
        """
        return self.in_passes(model, model, rows, segments)

    def decoding(self, ids: Mapping[str, list[int]], *, max_new: int | None, usual: int) -> Decoding:
        """Return what decoding from these ids begins with: for tasks whose `target` is not "none".

        `max_new` None: as many new tokens as the task gives, `usual` where it leaves the choice.
        """
        raise OptionError(f"to {self.name} writes nothing, so there is nothing to decode")

    def passage(self, row: Sequence[int], method: DecodingMethod, options: WritingOptions) -> Passage:
        """Return the jobs that decode the output for a text's ids, without its special tokens."""
        frame, side = self.frame(), "decoder" if self.target == "continues" else "encoder"
        most = self.context - frame.size
        max_new = None if options.rules is None else options.rules.max_new
        decoding = self.decoding({side: frame.around(row, most)}, max_new=max_new, usual=self.context)
        rules = decoding.rules
        if options.rules is not None:
            min_new = min(options.rules.min_new, rules.max_new)
            rules = replace(options.rules, max_new=rules.max_new, min_new=min_new, end=rules.end, never=rules.never)
        job = Job(
            inputs=tuple(decoding.source),
            rules=rules,
            method=method,
            prefix=None if decoding.prefix is None else tuple(decoding.prefix[0]),
            candidates=options.candidates,
        )
        unread = max(0, len(row) - most)
        return Passage(
            first=job, following=lambda _: None, tokenizer=decoding.writes, before=decoding.before, unread=unread
        )


def texts_and_pairs(items: Sequence[str | Pair]) -> tuple[list[str], list[Pair]]:
    """Return items as texts, or as pairs of them; OptionError if there are both."""
    texts = [item for item in items if isinstance(item, str)]
    pairs = [item for item in items if not isinstance(item, str)]
    if pairs and texts:
        raise OptionError("some of the texts are pairs and some are not; give them apart")
    return texts, pairs


def split_pair(line: str) -> Pair:
    """Return the two texts of a line, which a tab separates.

    >>> split_pair("Is it late?\\tIt is.")
    ('Is it late?', 'It is.')
    """
    first, tab, second = line.partition("\t")
    if not tab or "\t" in second:
        raise OptionError(f"expected two texts with one tab between; came {line!r:.80}")
    return first, second
