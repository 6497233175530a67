"""Shards of a web server that are prepared for training: killed, twice at once, or with something else in what is left.

What comes out must be the ids that nothing disturbed, byte for byte, with nothing beside them; or it is refused, and
the next try makes them.
"""

import importlib
import os
import random
import shutil
from pathlib import Path
from typing import NamedTuple

from clearhead.text import parts, remote
from clearhead.text.encoding import Corpus
from clearhead.text.preparing import Tokenizing, prepare
from clearhead.text.sources import Documents
from clearhead.training.tasks import TASKS
from tests.attack import forking
from tests.attack.calls import Act
from tests.attack.changing import flip_bit
from tests.attack.forking import Outcome
from tests.attack.kills import calls_of, do_at
from tests.attack.pairs import both, watched
from tests.attack.small import changes, contents, problem_of, said_error
from tests.attack.table import Row, Tries, attack
from tests.text.shard_server import ShardServer
from tests.training.tiny import quiet

FAULTS = (503, "cut", "short", "long")


class Shards(NamedTuple):
    """Where the shards are, what is made of them undisturbed, and the file calls that make it."""

    home: Path
    corpus: Corpus
    web: ShardServer
    whole: dict[str, bytes | str]
    made: list[str]

    def prepare(self) -> int:
        """Prepare the text in small parts, as a process of its own would."""
        parts.PART_BYTES, remote.WAIT = 400, 0.0
        os.environ[remote.FOLDER] = str(self.home / "cache")
        how = Tokenizing(kind="bpe", size=300)
        data = self.home / "data"
        return said_error(lambda: prepare(self.corpus, TASKS["generate"].layout(16), how, data, quiet))

    def again(self, *, may_refuse: bool = False) -> str:
        """Prepare it, again where it may be refused once; return what is wrong with what is there then."""
        ended = forking.run(self.prepare)
        if may_refuse and ended.code and not ended.unclear():
            ended = forking.run(self.prepare)
        if ended.code:
            return ended.unclear() or f"cannot be given again: {ended.err[-300:]}"
        return changes(self.whole, self.home / "data")

    def killed(self, act: str, draw: random.Random) -> str:
        ended = do_at(self.home, self.prepare, draw.randint(1, len(self.made)), act)
        return self.again() if ended.code == -9 else f"was not killed: {ended.code} {ended.err[-200:]}"

    def spoilt(self, how: str, draw: random.Random) -> str:
        """Kill it and flip a bit of what is left, or put a link there, which leads to files of the user's."""
        self.killed_late(draw)
        left = [path for path in self.home.glob("data/.*.parts/**/*") if path.is_file() and path.stat().st_size]
        if how == "a flipped bit":
            name = draw.choice(sorted({path.name for path in left}))
            flip_bit(draw.choice([path for path in left if path.name == name]), draw)
            return self.again(may_refuse=True)
        path, users = (
            draw.choice([*self.home.glob("data/.*.parts"), left[0].parent, draw.choice(left)]),
            self.home / "u",
        )
        path.rename(users)
        path.symlink_to(users)
        before = contents(users) or users.read_bytes()
        problem = problem_of(forking.run(self.prepare), (0, 1))
        after = contents(users) or users.read_bytes()
        shutil.rmtree(users) if users.is_dir() else users.unlink()
        return problem or ("" if after == before else "changed through the link")

    def killed_late(self, draw: random.Random) -> None:
        """Kill it once its tokeniser and a part are there."""
        first = self.made.index("rename 000000.partial") + 2
        last = len(self.made) - self.made[::-1].index("rename 000000.partial") - 1
        do_at(self.home, self.prepare, draw.randint(first, max(first, last)), "kill")

    def at_once(self, draw: random.Random) -> str:
        def work(act: Act) -> object:
            return watched(self.home, self.prepare, act)

        ended: list[Outcome] = both([work, work], draw)  # type: ignore[list-item]
        wrong = [one.unclear() or one.err[-300:] for one in ended if one.code]
        return wrong[0] if wrong else changes(self.whole, self.home / "data")


WAYS = ("kill", "cut_power", "at once", "a flipped bit", "a link")


@attack(
    "preparing",
    "shards of a server that fails, prepared: killed or without power at a file call, twice at once, with a flipped "
    "bit or a link in what a kill left",
)
def preparing(home: Path, tries: Tries) -> Row:
    importlib.import_module("fsspec.implementations.http")  # once here, and not in every child
    (home / "web").mkdir()
    for i in range(6):
        lines = (f"shard {i} has line {j} with {i * j % 97} ships\n" for j in range(40))
        (home / "web" / f"part-{i}.txt").write_text("".join(lines))
    web = ShardServer(home / "web")
    with web.serve() as address:
        paths = tuple(f"{address}/part-{i}.txt" for i in range(6))
        place = home / "place"
        place.mkdir()
        shards = Shards(place, Corpus(train=Documents(paths=paths, unit="line")), web, {}, [])
        made = calls_of(place, shards.prepare)
        shards = shards._replace(whole=contents(place / "data"), made=made)

        def case(way: str, draw: random.Random) -> str:
            shutil.rmtree(place)
            place.mkdir()
            web.faults = {f"/part-{draw.randrange(6)}.txt": draw.choices(FAULTS, k=2)}
            match way:
                case "kill" | "cut_power":
                    problem = shards.killed(way, draw)
                case "at once":
                    problem = shards.at_once(draw)
                case _:
                    problem = shards.spoilt(way, draw)
            return problem

        return tries.each(WAYS * 60, case, short=10)
