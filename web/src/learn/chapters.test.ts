import { describe, expect, it } from "vitest";

import { learnDe } from "../text/learn.de";
import { learnEn } from "../text/learn.en";
import { smallLead, swapped } from "./attention";
import { pathOf } from "./chapters";
import { ALL_VIEWS, fake, type FakeKind } from "./fakes";
import { piecesOf, spoken, stateOf } from "./formula";
import type { Lesson, Now, Place, Prepared } from "./lesson";
import { parse, plain, token, tokenAt } from "./markup";

const KINDS: FakeKind[] = ["translator", "decoder", "classifier", "program", "linear"];

function lessonOf(kind: FakeKind, views = ALL_VIEWS, text = learnEn): Lesson {
  return { ...fake(kind), views, text };
}

function arrived(lesson: Lesson, { view, site, head, query, key, own }: Place): Now {
  const nothing = { site: site ?? null, head: head ?? 0, query: query ?? null, key: key ?? null };
  return { view, ...nothing, own: own ?? {}, meta: lesson.meta };
}

/** Everything a reader might choose, beginning with where a chapter leads. */
function choices(lesson: Lesson, now: Now): Now[] {
  const numbers = Array.from({ length: 8 }, (_, at) => at);
  const side = lesson.run.sides[lesson.run.sides.length - 1].side;
  const own = (...all: Record<string, string>[]): Now[] => all.map((one) => ({ ...now, own: { ...now.own, ...one } }));
  return [
    ...numbers.flatMap((query) => [{ ...now, query }, ...numbers.map((key) => ({ ...now, query, key }))]),
    ...numbers.map((key) => ({ ...now, key })),
    ...lesson.meta.sites.flatMap((site) => [0, 1].map((head) => ({ ...now, site: site.name, head }))),
    ...numbers.flatMap((at) =>
      own(
        { position: String(at) },
        { token: String(at) },
        { unit6: String(at) },
        { at: String(at) },
        { box: `${side}.output`, token: String(at) },
        ...lesson.run.sides.map((one) => ({ box: `token.${one.side}.${at}` })),
        ...numbers.map((other) => ({ pair: `${at},${other}` })),
      ),
    ),
    ...lesson.meta.sites.flatMap((site) =>
      [0, 1].map((head) => {
        const edits = [{ at: site.name, step: "context", head, times: 0 }];
        return { ...now, meta: { ...lesson.meta, edits } };
      }),
    ),
  ];
}

/** Tasks that need the model to be run again with an edit: the browser tests solve them. */
const EDITED = ["scale", "change"];

describe.each(KINDS)("the path of a %s", (kind) => {
  const lesson = lessonOf(kind);

  it("tells each chapter with numbers, in both languages", async () => {
    for (const text of [learnEn, learnDe])
      for (const chapter of pathOf(lesson)) {
        const { said, task } = await chapter.prepare({ ...lesson, text });
        const all = [chapter.title({ ...lesson, text }), ...said, task?.ask ?? ""].map(plain).join(" ");
        expect(all, chapter.name).not.toMatch(/undefined|NaN|\[object|\[\[|\*\*/);
        expect(said.length, chapter.name).toBeGreaterThan(0);
      }
  });

  it("has tasks that are not solved where they begin, and can be", async () => {
    for (const chapter of pathOf(lesson)) {
      const made: Prepared = await chapter.prepare(lesson);
      if (made.task === null) continue;
      const start = arrived(lesson, made.place);
      expect((await made.task.check(start)).solved, chapter.name).toBe(false);
      if (EDITED.includes(chapter.name) && made.place.view === "intervene") continue;
      const verdicts = await Promise.all(choices(lesson, start).map((now) => made.task!.check(now)));
      expect(
        verdicts.some((one) => one.solved),
        chapter.name,
      ).toBe(true);
      expect(
        verdicts.some((one) => !one.solved),
        chapter.name,
      ).toBe(true);
      expect(
        verdicts.every((one) => plain(one.said) !== ""),
        chapter.name,
      ).toBe(true);
    }
  });
});

describe("what a run has no chapter for", () => {
  const names = (kind: FakeKind, views = ALL_VIEWS): string[] => pathOf(lessonOf(kind, views)).map((one) => one.name);

  it("follows from its parts", () => {
    expect(names("translator")).toContain("cross");
    expect(names("decoder")).not.toContain("cross");
    expect(names("classifier")).not.toContain("mask");
    expect(names("classifier")).not.toContain("sampling");
    expect(names("program")).not.toContain("scale");
    expect(names("linear")).not.toContain("position");
    expect(names("decoder")).toContain("position");
  });

  it("follows from the views of the page", () => {
    const few = names("translator", ["model", "heads", "head", "steps"]);
    expect(few).not.toContain("change");
    expect(few).not.toContain("sampling");
    expect(few).toContain("embedding");
    expect(few).toContain("scale");
  });

  it("names the weighting that there is", () => {
    const title = (kind: FakeKind): string => {
      const lesson = lessonOf(kind);
      return pathOf(lesson)
        .find((one) => one.name === "softmax")!
        .title(lesson);
    };
    expect([title("decoder"), title("program"), title("linear")]).toEqual([
      "Softmax",
      "All on the best",
      "Shares of the row",
    ]);
  });
});

describe("examples", () => {
  it("of softmax have a small lead in score, of cross-attention another order", () => {
    const lead = (difference: number): number => smallLead(Float32Array.of(Math.exp(difference), 1), 0, [0]);
    expect([lead(1.5), lead(2.5), lead(0.1), lead(6)]).toEqual([1, 0.15, 0.1, 0.1]);
    expect([0, 1, 2].map((query) => swapped(new Float32Array(), query, [2, 0, 1]))).toEqual([0.4, 1, 1]);
  });

  it("say of a causal decoder what its mask tells of the order", async () => {
    const said = async (kind: FakeKind): Promise<string> => {
      const lesson = lessonOf(kind);
      const chapter = pathOf(lesson).find((one) => one.name === "position")!;
      return (await chapter.prepare(lesson)).said[0];
    };
    expect(await said("decoder")).not.toContain("a set");
    expect(await said("translator")).toContain("a set");
  });

  it("end with a summary, after the two questions that the notes leave open", () => {
    const names = pathOf(lessonOf("translator")).map((one) => one.name);
    expect(names).toEqual(expect.arrayContaining(["roles", "layers"]));
    expect(names.at(-1)).toBe("summary");
  });
});

describe("the formula", () => {
  const path = pathOf(lessonOf("decoder")).map((one) => one.name);

  it("has what the site has", () => {
    const site = (kind: FakeKind) => fake(kind).meta.sites[0];
    expect(spoken(piecesOf(site("decoder"), path))).toBe("x + softmax( Q Kᵀ / √d + M ) V W_O");
    const program = pathOf(lessonOf("program")).map((one) => one.name);
    expect(spoken(piecesOf(site("program"), program))).toBe("x + argmax( Q Kᵀ ) V W_O");
  });

  it("lights up piece by piece", () => {
    expect(stateOf("scale", "score", path)).toBe("faint");
    expect(stateOf("scale", "scale", path)).toBe("lit");
    expect(stateOf("scale", "softmax", path)).toBe("inked");
  });
});

describe("marks in sentences", () => {
  it("are tokens, terms and what matters", () => {
    expect(parse(`${token("four", "query")} with **91 %** after [[softmax|Softmax]].`)).toEqual([
      { kind: "token", text: "four", role: "query" },
      { kind: "text", text: " with " },
      { kind: "strong", text: "91 %" },
      { kind: "text", text: " after " },
      { kind: "term", text: "Softmax", name: "softmax" },
      { kind: "text", text: "." },
    ]);
  });

  it("cannot be made by a token of the text", () => {
    expect(parse(token("**x** [[key]]"))).toEqual([{ kind: "token", text: "**x** [[key]]", role: "token" }]);
  });

  it("tell apart a token that the text has twice", () => {
    expect(plain(tokenAt(["a", "b", "a"], 2))).toBe("a (2)");
    expect(plain(tokenAt(["a", "b", "a"], 1))).toBe("b");
  });
});
