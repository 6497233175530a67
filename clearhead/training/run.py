"""A loaded run: the model, its tokenisers, and what it can be asked to do.

```
run = ch.load("runs/de-en")
run.translate("zweiundvierzig")              # one text, one answer: "forty-two"
run.translate(["zwei", "drei"], beam=5)      # several texts, a list of answers
```

What a run shows of itself, printed or in a notebook: task, size, score, and how to use it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead import devices, files
from clearhead.calls import public
from clearhead.decoding import Beam, Greedy, Sample
from clearhead.errors import ClearheadError, OptionError, RunError, errors_as
from clearhead.model.int8 import DTYPES, check_dtype, count_weights, int8_maps, quantize
from clearhead.model.sizes import Spec
from clearhead.model.transformers import Transformer
from clearhead.notebook import Display, facts
from clearhead.registry import Parts, import_parts
from clearhead.text.sources import Source
from clearhead.text.templates import ChatTemplate, Message
from clearhead.text.tokenizer import Tokenizer
from clearhead.training import checkpoints, claiming, reporting
from clearhead.training.evaluation import EvaluationOptions, evaluate
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Origin
from clearhead.training.tasks import Answer, Fill, Generate, Task, Translate, name_of
from clearhead.training.tasks.answering import (
    Pair,
    Written,
    check_list,
    check_max_new,
    check_text,
    check_text_or_pair,
    one_or_several,
)
from clearhead.training.tasks.classify import Class, OneLabel
from clearhead.training.tasks.embed import Pooling, embed_texts
from clearhead.training.tasks.fill import Filling
from clearhead.training.tasks.generate import Detokenizer
from clearhead.training.tasks.texts import Framing
from clearhead.training.weights import fill_tuned, load_wide, select_weights

LONGEST = 60
"""The most characters of a text that is given as an example."""


class RunCard(NamedTuple):
    """What there is to say of a loaded run; `method` is that of the run which answers texts."""

    folder: RunFolder
    task: Task
    model: nn.Module
    step: int
    method: str

    def draw(self) -> Display:
        """Return what a notebook shows."""
        return Display(f"Run {self.folder.path}", facts(self.find()))

    def describe(self) -> str:
        """Return what is printed: a few lines."""
        lines = [f"Run {self.folder.path}"]
        for name, text in self.find().items():
            first, *rest = [text] if isinstance(text, str) else text
            lines += [f"  {name:8}{first}", *(f"  {'':8}{line}" for line in rest)]
        return "\n".join(lines)

    def find(self) -> dict[str, str | list[str]]:
        """Return the facts by name; lines of code are lists."""
        evaluated = {}
        try:
            evaluated, made = self.folder.best_evaluation(), self.folder.origin()
            origin = f"imported from {made.source}" if isinstance(made, Origin) else f"trained for {self.step:,} steps"
        except ClearheadError as error:  # a display must not fail because a file of the run is missing or damaged
            origin = str(error)
        score = self.format_scores(evaluated)
        return {
            "task": f"{self.task.name}, with {name_family(self.model)}",
            "size": f"{count_weights(self.model):,} parameters{describe_sizes(self.model)}",
            "weights": origin,
            **({"score": score} if score else {}),
            "use": self.list_uses(evaluated),
        }

    def format_scores(self, evaluated: Mapping[str, Any]) -> str:
        """Return the scores that the task is measured by, the main one first."""
        scores = {**evaluated, **evaluated.get("scores", {})}
        measured = [measure for measure in self.task.measures if isinstance(scores.get(measure.key), int | float)]
        text = ", ".join(f"{measure.name} {measure.shown(scores[measure.key])}" for measure in measured)
        if scores.get("labels_asked") == 1:
            text += ", of one label only,"
        step = evaluated.get("step", self.step)
        return f"{text} on held-out text" + ("" if step == self.step else f", at step {step:,}") if text else ""

    def list_uses(self, evaluated: Mapping[str, Any]) -> list[str]:
        """Return what to write to use a run: in Python, to look into it, and on the command line."""
        texts = [sample.get("input") for sample in evaluated.get("samples", ())]
        known = [text for text in texts if isinstance(text, str) and 0 < len(text) <= LONGEST and text.isprintable()]
        text = (*known, "a text")[0]
        given = self.task.example_code(text)
        shell = f"clearhead {self.task.verb} {self.folder.path}"
        return [f"run.{self.method}([{given}])", f"ch.trace(run, {given})", shell]


def name_family(model: nn.Module) -> str:
    """Return what kind of model it is, with its article."""
    return {"EncoderDecoder": "an encoder-decoder", "Encoder": "an encoder"}.get(type(model).__name__, "a decoder")


def describe_sizes(model: Any) -> str:
    """Return blocks, width and vocabulary of a model that was built from a spec."""
    if not hasattr(model, "spec"):
        return ""
    stacks = model.spec.stacks
    blocks = " + ".join(str(len(stack.blocks)) for stack in stacks)
    vocabulary = " and ".join(f"{n:,}" for n in dict.fromkeys(stack.vocabulary for stack in stacks))
    return f": {blocks} blocks, {model.spec.d_model} wide, a vocabulary of {vocabulary}"


AnyTask = TypeVar("AnyTask", bound=Task)


@final
class Run:
    """A trained model and what it can do; `ch.load` and `ch.train` return it.

    Attributes:
        folder: The run folder.
        task: What it was trained for, with its tokenizers.
        model: An ordinary nn.Module, in eval mode.
        step: Training step of the weights.
    """

    def __init__(self, folder: RunFolder, task: Task, model: Transformer, step: int) -> None:
        self.folder, self.task, self.model, self.step = folder, task, model, step

    def __repr__(self) -> str:
        return f"Run({str(self.folder.path)!r}, task={self.task.name!r}, step={self.step})"

    @property
    def facts(self) -> RunCard:
        """Return what a run prints of itself."""
        method = self.task.verb if hasattr(self, self.task.verb) else "answer"
        return RunCard(self.folder, self.task, self.model, self.step, method)

    def __str__(self) -> str:
        return self.facts.describe()

    def _repr_html_(self) -> str:
        """Return what a notebook shows: task, size, score, and how to use it."""
        return self.facts.draw()._repr_html_()

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the tokeniser of the input; `task.tokenizers` has all of them by field."""
        return self.task.tokenizer

    def asked(self, task: type[AnyTask]) -> AnyTask:
        """Return the run's task, if it is this one; raise OptionError if the run was trained to do another."""
        check_asked(self.folder, type(self.task), task)
        assert isinstance(self.task, task)
        return self.task

    @public
    def unseen(self, text: str) -> str:
        """Return what of a text the tokeniser has never seen: characters, or words if its tokens are words."""
        return self.task.unseen(text)

    @one_or_several(check_text)
    def translate(self, texts: Sequence[str], *, beam: int = 5, length_penalty: float = 1.0) -> list[str]:
        """Return the best translation of each text; of one text, a str, its translation.

        A beam of 1 is greedy. A blank text gives a blank translation.
        """
        return [best_first[0] for best_first in self.translations(texts, beam=beam, length_penalty=length_penalty)]

    @one_or_several(check_text)
    def translations(
        self, texts: Sequence[str], *, beam: int = 5, n_best: int = 1, length_penalty: float = 1.0
    ) -> list[list[str]]:
        """Return the `n_best` best translations of each text; of one text, a str, a list of them."""
        scored = self.scored_translations(texts, beam=beam, n_best=n_best, length_penalty=length_penalty)
        return [[hypothesis.text for hypothesis in hypotheses] for hypotheses in scored]

    @one_or_several(check_text)
    def scored_translations(
        self, texts: Sequence[str], *, beam: int = 5, n_best: int = 1, length_penalty: float = 1.0
    ) -> list[list[Written]]:
        """Return the `n_best` best translations of each text with their scores; of one text, a str, a list of them."""
        method = Greedy() if beam == n_best == 1 else Beam(width=beam, n_best=n_best, length_penalty=length_penalty)
        return self.asked(Translate).translate(self.model, texts, method)

    @one_or_several(check_text)
    def generate(
        self, prompts: Sequence[str] = "", *, max_new: int = 200, method: Greedy | Sample = Sample(temperature=0.8)
    ) -> list[str]:
        """Return the continuation of each prompt, without the prompt; of one prompt, a str, its continuation.

        Of a long prompt only the end is read.
        """
        return [continuation.text for continuation in self.scored_texts(prompts, max_new=max_new, method=method)]

    @one_or_several(check_text)
    def scored_texts(
        self, prompts: Sequence[str] = "", *, max_new: int = 200, method: Greedy | Sample = Sample(temperature=0.8)
    ) -> list[Written]:
        """Return the continuation of each prompt with its log-probability; for one prompt, a str, only its text."""
        return self.asked(Generate).continue_texts(self.model, prompts, method, max_new=check_max_new(max_new))

    @public
    def stream(
        self, prompt: str = "", *, max_new: int = 200, method: Greedy | Sample = Sample(temperature=0.8)
    ) -> Iterator[str]:
        """Yield what `generate` returns, piece by piece as it is decoded. A piece never ends within a character."""
        task, prompt = self.asked(Generate), check_text("prompt", prompt)
        return stream_text(self.model, task, prompt, method, max_new=check_max_new(max_new))

    def chat_text(self, messages: str | Sequence[Message]) -> str:
        """Return a conversation as the text that the model continues, by the chat template that came with it.

        A str is a conversation of one message, the user's.
        """
        self.asked(Generate)
        template = find_template(self.folder)
        return template.render([{"role": "user", "content": messages}] if isinstance(messages, str) else messages)

    @public
    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        max_new: int = 200,
        method: Greedy | Sample = Sample(temperature=0.8),
    ) -> str:
        """Return the model's reply to messages, each with a `role` (system, user or assistant) and `content`.

        A str is one message of the user's.
        """
        return self.scored_replies([messages], max_new=max_new, method=method)[0].text

    def scored_replies(
        self,
        chats: Sequence[str | Sequence[Message]],
        *,
        max_new: int = 200,
        method: Greedy | Sample = Sample(temperature=0.8),
    ) -> list[Written]:
        """Return the reply to each conversation, with its log-probability; each may be a str, as in `chat`."""
        if isinstance(chats, str):
            raise OptionError("chats: expected a list of conversations; came a str. Write [text], or use `chat`")
        task, prompts = self.asked(Generate), [self.chat_text(messages) for messages in chats]
        framing = replace(task.frame(), before=())  # a template brings its own special tokens
        return task.continue_texts(self.model, prompts, method, max_new=check_max_new(max_new), framing=framing)

    @public
    def stream_reply(
        self,
        messages: str | Sequence[Message],
        *,
        max_new: int = 200,
        method: Greedy | Sample = Sample(temperature=0.8),
    ) -> Iterator[str]:
        """Yield what `chat` returns, piece by piece as it is decoded."""
        task = self.asked(Generate)
        framing = replace(task.frame(), before=())
        prompt, max_new = self.chat_text(messages), check_max_new(max_new)
        return stream_text(self.model, task, prompt, method, max_new=max_new, framing=framing)

    @public
    def embed(
        self, texts: str | Sequence[str | Pair], *, pooling: Pooling = "mean", normalize: bool = False
    ) -> Float[Tensor, "*text d_model"]:
        """Return a vector for each text: the mean of its tokens' last vectors, or the first (`pooling="first"`).

        Of one text, a str, it is one vector. A text may be a pair of two, for an imported model that reads pairs; give
        one pair in a list.

        Any run with an encoder will do. `normalize` makes each vector's length 1, so that a dot product of two is
        their cosine.
        """
        several = [texts] if isinstance(texts, str) else check_list("texts", texts, check_text_or_pair)
        vectors = embed_texts(self.task, self.model, several, pooling=pooling, normalize=normalize)
        return vectors[0] if isinstance(texts, str) else vectors

    @one_or_several(check_text_or_pair)
    def classify(self, texts: Sequence[str | Pair]) -> list[Class]:
        """Return the class of each text, with the probability of every label; of one text, a str, its class.

        A model that reads two texts is given pairs: `run.classify([("It rains.", "It is wet.")])`.
        """
        return self.asked(OneLabel).classify(self.model, texts)

    @one_or_several(check_text)
    def fill(self, texts: Sequence[str], *, shown: int = 5) -> list[Filling]:
        """Fill every `<mask>` of each text with its `shown` likeliest pieces; one text, a str, gives one filling."""
        return self.asked(Fill).fill(self.model, texts, shown=shown)

    @one_or_several(check_text_or_pair)
    def answer(self, texts: Sequence[str | Pair]) -> list[Answer]:
        """Return what the run's task answers to each text, as `clearhead answer --json` tells it: `output`, and more.

        Of one text, a str, it is one answer.

        It serves any task, one of your own too; the verbs above have the options of ours.
        """
        return self.task.answer_items(self.model, texts)

    @public
    def save(self, path: str | Path) -> "Run":
        """Write the run as it is in memory to a new folder, and return it: the model's weights of now, and tokenisers.

        The folder has all that using the run needs. It has no training to resume; train it further as a run of its
        own: `train(..., initial=run)`.
        """
        spec = self.folder.spec()
        tensors = checkpoints.named_tensors(self.model)
        with torch.device("meta"):
            plain = spec.build()
            parameters = count_weights(plain)
            expected = {
                name: tensor.shape
                for name, tensor in checkpoints.named_tensors(quantize(plain, int8_maps(tensors))).items()
            }
        if {name: tensor.shape for name, tensor in tensors.items()} != expected:
            raise OptionError(
                f"{self.folder.path}: the model in memory has other tensors than the run was trained with; load it "
                "with merge=True, or put its modules back"
            )
        origin = Origin(
            source=str(self.folder.path),
            file_format="clearhead",
            architecture=type(spec).__name__.removesuffix("Spec"),
            task=name_of(type(self.task)),
            dtype="int8" if int8_maps(tensors) else str(next(iter(tensors.values())).dtype).removeprefix("torch."),
            parameters=parameters,
        )
        with files.replacing_folder(Path(path)) as partial:
            claiming.write_imported(RunFolder(partial), spec, self.task, tensors, origin, chat=self.folder.chat())
        return load(path, device=str(next(self.model.parameters()).device))

    @public
    def evaluate(
        self,
        source: Source,
        *,
        beam: int = 5,
        length_penalty: float = 1.0,
        tokenize: str = "13a",
        lower: bool = False,
        stride: int | None = None,
    ) -> dict[str, Any]:
        """Return the scores on these files, as `clearhead evaluate` prints them; `EvaluationOptions` explains the
        options.
        """
        options = EvaluationOptions(
            beam=beam, length_penalty=length_penalty, tokenize=tokenize, lower=lower, stride=stride
        )
        return evaluate(self, source, options)


def find_template(folder: RunFolder) -> ChatTemplate:
    """Return the chat template that came with a run; OptionError if there is none."""
    template = folder.chat()
    if template is None:
        raise OptionError(
            f"{folder.path} has no chat template: its model was not trained to talk. Leave out chat, and give a text "
            "to continue"
        )
    return template


def check_asked(folder: RunFolder, trained: type[Task], asked: type[Task]) -> None:
    """Raise OptionError if a run was trained to do another task than the one it is asked to do."""
    if not issubclass(trained, asked):
        raise OptionError(
            f"{folder.path} was trained to {trained.name}, and was asked to {asked.name}; "
            f"use `clearhead {trained.verb} {folder.path}`"
        )


def stream_text(
    model: Transformer,
    task: Generate,
    prompt: str,
    method: Greedy | Sample,
    *,
    max_new: int,
    framing: Framing | None = None,
) -> Iterator[str]:
    """Yield what follows a prompt, piece by piece."""
    row = task.tokenizer.encode(prompt)
    detokenizer = Detokenizer(task.tokenizer, row)
    for token in task.stream(model, [row], method, max_new=max_new, framing=framing):
        if piece := detokenizer.add(token.token):
            yield piece
    if last_piece := detokenizer.rest():
        yield last_piece


@public
def load(
    path: str | Path,
    *,
    device: str = "auto",
    dtype: str | None = None,
    step: int | None = None,
    parts: Parts | None = None,
    merge: bool = True,
    log: Callable[[str], None] = reporting.to_stderr,
) -> Run:
    """Return the run of a folder, with its best weights.

    Names, shapes and tokenizers are compared before a model is built. If the checkpoint is damaged, `log` gets a line
    about it and the newest intact one is loaded. Nothing is imported because a file in the folder names it.

    Args:
        path: The run folder.
        device: `auto`, `cpu`, `cuda`, `cuda:1`.
        dtype: How weights are kept in memory, one of `clearhead.model.int8.DTYPES`; as they were saved if None.
        step: Checkpoint to load; if None the best one, or the last if the recipe chose that.
        parts: Where your own registered parts are: a module, its name, a class, or several of these.
        merge: False keeps LoRA adapters of a fine-tuned run apart from the weights.
        log: Called with lines for the user.

    Returns:
        The run.

    Raises:
        RunError: If the folder is not a run, or is damaged.
        OptionError: If a name or step does not exist.
    """
    if not isinstance(path, str | Path):
        raise OptionError(f"path: expected the folder of a run, a str or a Path; came {type(path).__name__}")
    check_dtype(dtype)
    chosen_device = devices.choose_device(device)
    import_parts(parts)
    folder = RunFolder(Path(path))
    tuning = folder.fine_tuning()
    task, spec = folder.task(), folder.spec()
    check_fit(task, spec, str(folder.model_file))
    wide = load_wide(folder)
    used_step, where, weights = select_weights(folder, spec, step, log)
    weights = {**weights, **wide}
    model = spec.build()
    if {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()} == {torch.bfloat16}:
        model = model.to(torch.bfloat16)  # as an imported model was asked for; training saves float32
    if tuning is None:
        quantize(model, int8_maps(weights))
        checkpoints.copy_into(checkpoints.named_tensors(model), weights, where)
    else:
        fill_tuned(model, folder, tuning, weights, merge=merge, where=where)
    if dtype is not None:
        DTYPES[dtype](model)
    return Run(folder, task, model.to(chosen_device).eval(), used_step)


def as_run(run: Run | str | Path, *, device: str = "auto") -> Run:
    """Return a run as it is, or load it from the path of its folder."""
    return run if isinstance(run, Run) else load(run, device=device)


def check_fit(task: Task, spec: Spec, where: str) -> None:
    """Raise RunError if a model does not fit the task, its tokenisers and its labels."""
    with errors_as(RunError, where):
        texts = task.layout(task.context).texts
        if set(task.tokenizers) != set(texts):
            raise OptionError(f"to {task.name} takes tokenisers for {' and '.join(texts)}, and no others")
        for field, framing in (task.framing or {}).items():
            framing.check(task.tokenizers[field].vocabulary if field in task.tokenizers else 0, f"framing: {field}")
        fits = task.fitted(spec) == spec
    if not fits:
        raise RunError(f"{where}: its model has another vocabulary or other labels than the run's tokenisers and task")
