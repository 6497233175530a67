"""`clearhead generate`: a run continues a prompt, or each line of a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from clearhead.cli.line_io import (
    AsJson,
    Device,
    Dtype,
    Fields,
    File,
    InputLine,
    Lines,
    RunPath,
    StderrNotes,
    answer_lines,
    as_line,
    cells,
    open_run,
)
from clearhead.cli.options import Parts
from clearhead.cli.screen import write, write_output
from clearhead.decoding import Greedy, Sample
from clearhead.errors import WordError
from clearhead.options import Option, option
from clearhead.text.lines import Place
from clearhead.training.folder import RunFolder
from clearhead.training.run import Run, check_asked, find_template
from clearhead.training.tasks import Generate
from clearhead.training.tasks.generate import window

EXAMPLES = """\b
Examples:
  clearhead generate runs/shakespeare --prompt 'ROMEO:' --max-tokens 300
  clearhead generate runs/shakespeare --prompt '' --temperature 0.7 --top-k 40
  clearhead generate runs/lines beginnings.txt --greedy --json"""
BETWEEN = "---\n"
"""Between several continuations of one prompt."""


@dataclass(frozen=True, kw_only=True)
class Writing:
    """How text is written."""

    title: ClassVar[str] = "Sampling"

    max_tokens: int = option(200, "Most new tokens.", takes="N", least=1)
    count: int = option(1, "Continuations of each prompt; for lines, separated by tabs.", takes="N", least=1)
    temperature: float | None = option(None, "Below 1 favours likely tokens.  [default: 0.8]", takes="X")
    top_k: int | None = option(None, "Sample from the K likeliest tokens.", takes="K")
    top_p: float | None = option(None, "Sample from the fewest tokens whose probabilities sum to P.", takes="P")
    min_p: float | None = option(None, "Sample from tokens with at least P times the highest probability.", takes="P")
    greedy: bool = option(False, "Take the likeliest token each time.")
    seed: int = option(0, "Random seed: the same seed gives the same text.", takes="N")

    def method(self, numbers: list[int]) -> Greedy | Sample:
        """For `count` continuations of each of these lines; every one draws from its own seed."""
        cuts = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        given_cuts = {name: value for name, value in cuts.items() if value is not None}
        if self.greedy:
            for name in [*given_cuts, *(["temperature"] if self.temperature is not None else [])]:
                raise WordError(name, "is for drawing tokens, and --greedy draws none: leave one of them out")
            return Greedy()
        seeds = tuple(self.seed + number * self.count + i for number in numbers for i in range(self.count))
        return Sample(temperature=0.8 if self.temperature is None else self.temperature, seeds=seeds, **given_cuts)


def generate(
    run: RunPath,
    file: File = "-",
    *,
    prompt: Annotated[
        str | None, Option("Continue this text, instead of lines; '' starts from nothing.", takes="TEXT")
    ] = None,
    chat: Annotated[
        bool, Option("Reply to the prompt, or to each line, by the chat template of an imported run.")
    ] = False,
    system: Annotated[
        str | None, Option("With --chat, the system message before the first message.", takes="TEXT")
    ] = None,
    how: Writing,
    device: Device = "auto",
    dtype: Dtype = None,
    parts: Parts = None,
    as_json: AsJson = False,
) -> None:
    """Continue a prompt; or continue each line of a file, one line out for each line in.

    With --prompt, the prompt and its continuation are printed as they are written. With lines, only the continuation is
    printed, with its line breaks as spaces, and a blank line stays blank. If a line is longer than the model's context,
    only its end is read, with a note on stderr.
    """
    if prompt is not None and file != "-":
        raise WordError("prompt", f"is instead of a file, and there is {file}: leave one of them out")
    if system is not None and not chat:
        raise WordError("system", "is for --chat: add it, or leave this out")
    how.method([0])
    ask = Conversation(system) if chat else None
    if ask is not None:
        check_chat(RunFolder(Path(run)), ask)
    loaded = open_run(run, device=device, dtype=dtype, file="-" if prompt is not None else file, task=Generate)
    task = loaded.asked(Generate)
    reads, _ = window(task.context, how.max_tokens)

    lines = Lines(
        answer=lambda texts, numbers: continuations(loaded, texts, numbers, how, ask),
        as_text=lambda answered: cells([sample["output"] for sample in answered.get("samples", [answered])]),
        as_json=as_json,
        reads=reads,
        unread="the beginning",
    )
    if prompt is None:
        answer_lines(loaded, file, lines)
    else:
        go_on(loaded, prompt, how, lines, ask)


@dataclass(frozen=True)
class Conversation:
    """A conversation that begins with a user's message, after what the system says if anything."""

    system: str | None

    def messages(self, text: str) -> list[dict[str, str]]:
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*first, {"role": "user", "content": text}]


def check_chat(folder: RunFolder, ask: Conversation) -> None:
    """Raise OptionError if a run cannot be talked to, or not after a system's message."""
    check_asked(folder, folder.task_kind(), Generate)
    find_template(folder).render(ask.messages("Hello"))


def continuations(
    run: Run, texts: list[str], numbers: list[int], how: Writing, ask: Conversation | None
) -> list[Fields]:
    prompts = [text for text in texts for _ in range(how.count)]
    method = how.method(numbers)
    if ask is None:
        texts_written = run.scored_texts(prompts, max_new=how.max_tokens, method=method)
    else:
        texts_written = run.scored_replies(
            [ask.messages(text) for text in prompts], max_new=how.max_tokens, method=method
        )
    samples = [{"output": written_text.text, "score": written_text.score} for written_text in texts_written]
    groups = [samples[i : i + how.count] for i in range(0, len(samples), how.count)]
    return [{**group[0], **({"samples": group} if how.count > 1 else {})} for group in groups]


def go_on(run: Run, prompt: str, how: Writing, lines: Lines, ask: Conversation | None) -> None:
    """Continue one prompt: as JSON, several times, or once and printed as it is written.

    Of a conversation only the replies are printed.
    """
    notes = StderrNotes(run, lines)
    first = prompt if ask is None else ""
    if lines.as_json:
        write(as_line({"input": prompt, **lines.answer([prompt], [0])[0]}) + "\n")
    elif how.count > 1:
        samples = lines.answer([prompt], [0])[0]["samples"]
        write_output(BETWEEN.join(f"{first}{sample['output']}\n" for sample in samples))
    else:
        write_output(first)
        method = how.method([0])
        pieces = (
            run.stream(prompt, max_new=how.max_tokens, method=method)
            if ask is None
            else run.stream_reply(ask.messages(prompt), max_new=how.max_tokens, method=method)
        )
        for piece in pieces:
            write_output(piece)
        write("\n")
    notes.look([InputLine(prompt, Place("--prompt", 1))])
    notes.tell()
