import { flushSync } from "svelte";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import type { Source } from "../lib/source";
import { Explorer } from "../lib/state.svelte";
import { learnEn } from "../text/learn.en";
import { pathOf } from "./chapters";
import { ALL_VIEWS, fake } from "./fakes";
import { Learning } from "./learning.svelte";

let stop = (): void => {};

beforeEach(() => {
  vi.stubGlobal("matchMedia", () => ({ matches: false, addEventListener: () => {} }));
  for (const name of ["addEventListener", "removeEventListener"]) vi.stubGlobal(name, () => {});
  vi.stubGlobal("location", { hash: "" });
});
afterEach(() => {
  stop();
  vi.unstubAllGlobals();
});

/** A source that answers so many questions, and the others when it is told to. */
class Gate {
  asked = 0;
  most = Infinity;
  private waiting: (() => void)[] = [];

  constructor(private readonly of: Source) {}

  open(): void {
    this.most = Infinity;
    this.waiting.splice(0).forEach((go) => go());
  }

  get source(): Source {
    return new Proxy(this.of, {
      get: (of, name) => {
        if (name === "during") return () => this.source;
        if (name === "views") return ALL_VIEWS;
        const found: unknown = Reflect.get(of, name);
        if (typeof found !== "function" || name === "exact") return found;
        return async (...given: unknown[]) => {
          if (++this.asked > this.most) await new Promise<void>((go) => this.waiting.push(go));
          return found.apply(of, given) as unknown;
        };
      },
    });
  }
}

async function settled(): Promise<void> {
  for (let turn = 0; turn < 50; turn++) {
    await new Promise((go) => setTimeout(go));
    flushSync();
  }
}

/** The chapter "score" of a made-up decoder, come to by its link; its first verdict is on its way. */
async function reading(): Promise<{ explorer: Explorer; learning: Learning; gate: Gate }> {
  const { run, meta, source } = fake("decoder");
  const gate = new Gate(Object.assign(source, { run: async () => run, trace: async () => meta }));
  const lesson = { run, meta, source: gate.source, views: ALL_VIEWS, text: learnEn };
  const chapter = pathOf(lesson).find((one) => one.name === "score")!;
  const { site, head, query, key } = (await chapter.prepare(lesson)).place;
  const prepared = gate.asked;
  let address = `#/steps?source=red+cat&site=${site}&head=${head}&query=${query}&key=${key}&learn=score`;
  const bar = { read: () => address, write: (next: string) => void (address = next), follow: () => {} };
  const explorer = new Explorer(gate.source, bar);
  await explorer.start();
  gate.most = gate.asked + prepared;
  let learning!: Learning;
  stop = $effect.root(() => {
    learning = new Learning(explorer, () => ALL_VIEWS);
  });
  await settled();
  expect([learning.chapter?.name, learning.prepared === null, learning.verdict]).toEqual(["score", false, null]);
  return { explorer, learning, gate };
}

describe("a chapter", () => {
  it("says nothing of what was chosen when it was come to", async () => {
    const { learning, gate } = await reading();
    gate.open();
    await settled();
    expect(learning.verdict).not.toBeNull();
    expect(learning.tried).toBe(false);
  });

  it("judges a move that is made before the first verdict has come", async () => {
    const { explorer, learning, gate } = await reading();
    explorer.select({ key: explorer.key === 0 ? 1 : 0 });
    flushSync();
    gate.open();
    await settled();
    expect(learning.verdict).not.toBeNull();
    expect(learning.tried).toBe(true);
  });

  it("answers a press on what is chosen already", async () => {
    const { learning, gate } = await reading();
    gate.open();
    await settled();
    learning.touch();
    flushSync();
    expect(learning.tried).toBe(true);
  });

  it("is gone to by a link that names no more than it, while another is open", async () => {
    const { learning, gate } = await reading();
    gate.open();
    await settled();
    for (const other of ["#/head?learn=mask", "#/?learn=mask&site=decoder.0.attention", "#/?source=red"])
      learning.followLink(other);
    await settled();
    expect([learning.chapter?.name, location.hash]).toEqual(["score", ""]);
    learning.followLink("#/?learn=mask&source=red+cat");
    await settled();
    expect(location.hash).toMatch(/^#\/head\?.*learn=mask/);
  });
});
