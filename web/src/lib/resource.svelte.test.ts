import { flushSync } from "svelte";
import { afterEach, describe, expect, it } from "vitest";

import { inTurn, type Options, type Resource, resource, together } from "./resource.svelte";

/** A question whose answers come when the test says so. */
interface Pending {
  word: string;
  signal: AbortSignal;
  answer: (value: string) => void;
  fail: (reason: unknown) => void;
}

let stop = (): void => {};
afterEach(() => stop());

class Question {
  word = $state<string | null>("first");
  asked: Pending[] = [];
  errors: unknown[] = [];
  of!: Resource<string>;

  constructor(options: Options = {}) {
    stop = $effect.root(() => {
      this.of = resource((signal) => {
        const word = this.word;
        if (word === null) return null;
        return new Promise<string>((answer, fail) => this.asked.push({ word, signal, answer, fail }));
      }, options);
    });
    flushSync();
  }

  ask(word: string | null): void {
    this.word = word;
    flushSync();
  }

  /** Answers a question, and lets promises that are settled go on. */
  async answer(value: string, which = 0): Promise<void> {
    this.asked[which].answer(value);
    await settle();
  }

  get state(): [string | null, string | null, boolean] {
    return [this.of.value, this.of.error, this.of.loading];
  }
}

/** Lets promises that are settled go on. */
const settle = (): Promise<void> => new Promise((done) => setTimeout(done, 0));

describe("a resource", () => {
  it("is loading until the answer is there", async () => {
    const question = new Question();
    expect(question.state).toEqual([null, null, true]);
    await question.answer("one");
    expect(question.state).toEqual(["one", null, false]);
  });

  it("drops the answer to an older question, also where it comes last", async () => {
    const question = new Question();
    question.ask("second");
    await question.answer("two", 1);
    await question.answer("one");
    expect(question.state).toEqual(["two", null, false]);
  });

  it("drops an older question's error, and stays loading", async () => {
    const errors: unknown[] = [];
    const question = new Question({ onerror: (error) => errors.push(error) });
    question.ask("second");
    question.asked[0].fail(new Error("aborted"));
    await settle();
    expect(question.state).toEqual([null, null, true]);
    expect(errors).toEqual([]);
  });

  it("aborts the former request, and the last one with its component", () => {
    const question = new Question();
    question.ask("second");
    expect(question.asked.map((one) => one.signal.aborted)).toEqual([true, false]);
    stop();
    expect(question.asked[1].signal.aborted).toBe(true);
  });

  it("keeps the former answer while the next is on its way", async () => {
    const question = new Question();
    await question.answer("one");
    question.ask("second");
    expect(question.state).toEqual(["one", null, true]);
  });

  it("forgets it with `reset`, unless the next is there at once", async () => {
    const question = new Question({ reset: true });
    await question.answer("one");
    question.ask("second");
    question.asked[1].answer("two");
    await Promise.resolve();
    expect(question.state[0]).not.toBeNull();
    await settle();
    expect(question.state).toEqual(["two", null, false]);
    question.ask("third");
    await new Promise((done) => setTimeout(done, 5));
    expect(question.state).toEqual([null, null, true]);
  });

  it("says why there is no answer, until there is one", async () => {
    const errors: unknown[] = [];
    const question = new Question({ onerror: (error) => errors.push(error) });
    const broken = new Error("no such site");
    question.asked[0].fail(broken);
    await settle();
    expect(question.state).toEqual([null, "no such site", false]);
    expect(errors).toEqual([broken]);
    question.ask("second");
    expect(question.state).toEqual([null, "no such site", true]);
    await question.answer("two", 1);
    expect(question.state).toEqual(["two", null, false]);
  });

  it("asks the same again when it is told to reload", async () => {
    const question = new Question();
    await question.answer("one");
    question.of.reload();
    flushSync();
    expect(question.asked.map((one) => one.word)).toEqual(["first", "first"]);
    expect(question.state).toEqual(["one", null, true]);
    await question.answer("another", 1);
    expect(question.state).toEqual(["another", null, false]);
  });

  it("asks nothing where there is nothing to ask", async () => {
    const question = new Question();
    await question.answer("one");
    question.ask(null);
    expect(question.asked).toHaveLength(1);
    expect(question.state).toEqual(["one", null, false]);
  });

  it("shows what has come so far, and stops an older question after its next part", async () => {
    let word = $state("a");
    const given: string[] = [];
    let next = (): void => {};
    async function* parts(of: string): AsyncGenerator<string> {
      for (const part of ["1", "2", "3"]) {
        await new Promise<void>((go) => (next = go));
        given.push(of + part);
        yield of + part;
      }
    }
    let found!: Resource<string>;
    stop = $effect.root(() => {
      found = resource(() => parts(word));
    });
    flushSync();
    next();
    await settle();
    expect([found.value, found.loading]).toEqual(["a1", true]);
    const old = next;
    word = "b";
    flushSync();
    old();
    await settle();
    expect(found.value).toBe("a1");
    for (let part = 0; part < 3; part++) {
      next();
      await settle();
    }
    expect([found.value, found.loading]).toEqual(["b3", false]);
    expect(given).toEqual(["a1", "a2", "b1", "b2", "b3"]);
  });
});

describe("several answers", () => {
  async function seen(answers: AsyncIterable<Map<string, string>>): Promise<string[]> {
    const found: string[] = [];
    for await (const part of answers) found.push([...part.values()].join(" "));
    return found;
  }

  it("come one after another", async () => {
    const asked: string[] = [];
    const ask = async (name: string): Promise<string> => {
      asked.push(name);
      await new Promise((done) => setTimeout(done));
      return name.toUpperCase();
    };
    const answers = inTurn(["a", "b", "c"], ask);
    expect((await answers.next()).value).toEqual(new Map([["a", "A"]]));
    expect(asked).not.toContain("c");
    expect(await seen(answers)).toEqual(["A B", "A B C"]);
  });

  it("come together where they are there at once", async () => {
    const ask = async (name: string): Promise<string> => name.toUpperCase();
    expect(await seen(inTurn(["a", "b", "c"], ask))).toEqual(["A B C"]);
  });

  it("are asked for at once, and come as they are answered", async () => {
    const waits: Record<string, number> = { a: 20, b: 0 };
    const ask = (name: string): Promise<string> =>
      new Promise((done) => setTimeout(() => done(name.toUpperCase()), waits[name]));
    expect(await seen(together(["a", "b"], ask))).toEqual(["B", "B A"]);
  });

  it("are asked for a few at once, so that another question need not wait for all of them", async () => {
    const names = [..."abcdefgh"];
    let [under, most] = [0, 0];
    const ask = async (name: string): Promise<string> => {
      most = Math.max(most, ++under);
      await new Promise((done) => setTimeout(done));
      under--;
      return name;
    };
    expect((await seen(together(names, ask))).at(-1)).toBe(names.join(" "));
    expect(most).toBe(3);
    expect(await seen(together(names, async (name) => name))).toEqual([names.join(" ")]);
  });

  it("end with the first that fails", async () => {
    const ask = async (name: string): Promise<string> => {
      if (name !== "a") throw new Error(`no ${name}`);
      return name;
    };
    await expect(seen(together(["a", "b", "c"], ask))).rejects.toThrow("no b");
    await expect(seen(inTurn(["a", "b", "c"], ask))).rejects.toThrow("no b");
  });
});
