"""CTranslate2 behind the same front: a scheduler that gives jobs to its translator, a batch at a time.

    python benchmarks/serving_peer.py RUN EXPORTED --slots 32      # serves like `clearhead serve`

EXPORTED is what `clearhead export RUN --to ctranslate2 -o EXPORTED` wrote.
"""

import argparse
import os
import sys
from collections import OrderedDict

import ctranslate2

from clearhead.decoding import Beam
from clearhead.decoding.hypotheses import Hypothesis
from clearhead.decoding.scheduler import Chosen, Finished, Scheduler
from clearhead.interop.export.samples import special_tokens, token_names
from clearhead.serve.api.routes import Api
from clearhead.serve.limits import Limits
from clearhead.serve.logs import Logs
from clearhead.serve.server import Server
from clearhead.training.run import load

THREADS = int(os.environ.get("OMP_NUM_THREADS", max(1, (os.cpu_count() or 1) - 1)))
"""One core is for requests, as `clearhead serve` has it."""


class Peer(Scheduler):
    """Jobs wait until the batch before them is done: CTranslate2 has no way to let one join."""

    def __init__(self, run, folder, slots):
        special = special_tokens(run)
        self.slots, self.end, self.source_end = slots, special.end, special.source_end
        self.read = token_names(run.task.tokenizers["source"])
        self.written = token_names(run.task.tokenizers["target"])
        self.ids = {name: place for place, name in enumerate(self.written)}
        self.folder, self.translator = str(folder), None
        self.jobs, self.next = OrderedDict(), 0

    def add(self, job):
        self.next += 1
        self.jobs[self.next] = job
        return self.next

    def cancel(self, ticket):
        self.jobs.pop(ticket, None)

    def step(self):
        """Translate the first jobs that wait and have the same beam and rules' length."""
        first = next(iter(self.jobs.values()))
        width = first.method.width if isinstance(first.method, Beam) else 1
        same = [t for t, job in self.jobs.items() if job.method == first.method and job.rules == first.rules]
        batch = same[: max(1, self.slots // width)]
        rows = [[one for one in self.jobs[t].inputs if one != self.source_end] for t in batch]
        if self.translator is None:  # here, and not before the fork: its threads would not be there
            self.translator = ctranslate2.Translator(self.folder, device="cpu", inter_threads=1, intra_threads=THREADS)
        found = self.translator.translate_batch(
            [[self.read[i] for i in row] for row in rows],
            beam_size=width,
            length_penalty=first.method.length_penalty if width > 1 else 1,
            max_decoding_length=first.rules.max_new,
            return_scores=True,
        )
        events = []
        for ticket, one in zip(batch, found, strict=True):
            tokens = (*(self.ids[name] for name in one.hypotheses[0]), self.end)
            value = one.scores[0] * (len(tokens) if width == 1 else 1)
            log_probs = (value / len(tokens),) * len(tokens)
            events += [Chosen(ticket, token, each) for token, each in zip(tokens, log_probs, strict=True)]
            events.append(Finished(ticket, [Hypothesis(tokens=tokens, log_probs=log_probs, score=value, ended=True)]))
            del self.jobs[ticket]
        return events

    @property
    def running(self):
        return min(self.slots, len(self.jobs))

    @property
    def waiting(self):
        return max(0, len(self.jobs) - self.slots)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("run")
    options.add_argument("exported")
    options.add_argument("--slots", type=int, default=32)
    options.add_argument("--replicas", type=int, default=1)
    asked = options.parse_args()
    run = load(asked.run, device="cpu")
    peer = lambda model, context: Peer(run, asked.exported, asked.slots)  # noqa: E731
    server = Server(
        Api([run], scheduler=peer, model_threads=THREADS, replicas=asked.replicas),
        token=os.environ["CLEARHEAD_TOKEN"],
        limits=Limits(queue=4096),
        logs=Logs("json"),
    )
    sys.stdout.write(f"{server.address}\n")
    sys.stdout.flush()
    server.run()


if __name__ == "__main__":
    main()
