import { describe, expect, test, vi } from "vitest";

import type { Meta, RunFacts } from "../lib/source";
import { LiveSource, type Port } from "./source";
import type { Answered, Question, Setup, Told } from "./worker";

/** A worker that answers when it is told to. */
class Fake {
  readonly told: Told[] = [];
  private hear: (event: MessageEvent<Answered>) => void = () => undefined;

  readonly port: Port = {
    postMessage: (message: Told) => void this.told.push(message),
    addEventListener: (kind: string, listener: unknown) => {
      if (kind === "message") this.hear = listener as typeof this.hear;
    },
  } as Port;

  get questions(): Question[] {
    return this.told.filter((one): one is Question => "name" in one);
  }

  answer(place: number, given: Omit<Answered, "number">): void {
    this.hear({ data: { number: this.questions[place].number, ...given } } as MessageEvent<Answered>);
  }
}

function opened(): { fake: Fake; source: LiveSource } {
  const fake = new Fake();
  const setup = {
    data: { run: { name: "demo", film: [0, 1] as number[] } as RunFacts },
    weights: "",
  } as unknown as Setup;
  return { fake, source: LiveSource.open(fake.port, setup) };
}

describe("a live page's source", () => {
  test("has the views that its page can fill", () => {
    const port = new Fake().port;
    const open = (data: object): LiveSource =>
      LiveSource.open(port, { data: { run: { film: [] }, exercises: null, ...data }, weights: "" } as unknown as Setup);
    const views = open({ curves: { lines: [] } }).views;
    expect(views).toContain("training");
    expect(views).not.toContain("exercises");
    expect(open({ curves: null }).views).toEqual(views.filter((view) => view !== "training"));
    expect(open({ exercises: { views: ["exercises"] } }).views).toContain("exercises");
    expect(open({}).everyStep).toBe(false);
    expect(opened().source.everyStep).toBe(true);
  });

  test("asks its worker, and the same question once", async () => {
    const { fake, source } = opened();
    const both = [source.ask("lens", { trace: "a" }), source.ask("lens", { trace: "a" })];
    expect(fake.questions).toHaveLength(1);
    fake.answer(0, { answer: "said" });
    expect(await Promise.all(both)).toEqual(["said", "said"]);
  });

  test("what went wrong is an error with its words, and is asked again", async () => {
    const { fake, source } = opened();
    const first = source.ask("positions", { n: 8 });
    fake.answer(0, { error: { message: "no such thing", status: 0 } });
    await expect(first).rejects.toThrow("no such thing");
    void source.ask("positions", { n: 8 }).catch(() => undefined);
    expect(fake.questions).toHaveLength(2);
  });

  test("a question that is given up is taken back", async () => {
    const { fake, source } = opened();
    const stop = new AbortController();
    const asked = source.during(stop.signal).ask("lens", { trace: "a" });
    stop.abort();
    await expect(asked).rejects.toThrow();
    expect(fake.told.at(-1)).toEqual({ stop: fake.questions[0].number });
  });

  test("what one gave up and another waits for is asked again", async () => {
    const { fake, source } = opened();
    const stop = new AbortController();
    const gone = source.during(stop.signal).ask("lens", { trace: "a" });
    const stays = source.ask("lens", { trace: "a" });
    stop.abort();
    await expect(gone).rejects.toThrow();
    await vi.waitFor(() => expect(fake.questions).toHaveLength(2));
    fake.answer(1, { answer: "said" });
    expect(await stays).toBe("said");
  });

  test("a trace that the engine let go is made anew", async () => {
    const { fake, source } = opened();
    const traced = source.ask("trace", { source: "vier" });
    fake.answer(0, { answer: { id: "a" } as Meta });
    await traced;
    const asked = source.ask("lens", { trace: "a" });
    fake.answer(1, { error: { message: "no longer kept", status: 410 } });
    await vi.waitFor(() => expect(fake.questions[2]?.name).toBe("trace"));
    fake.answer(2, { answer: { id: "a" } as Meta });
    await vi.waitFor(() => expect(fake.questions[3]?.name).toBe("lens"));
    fake.answer(3, { answer: "said" });
    expect(await asked).toBe("said");
  });
});
