import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import {
  type Answering,
  askOwn,
  type AskTrace,
  type EditJson,
  type HeadChoice,
  type Meta,
  type RunFacts,
  type Source,
  type ViewName,
} from "./source";
import { Explorer } from "./state.svelte";

const OFF: EditJson = { at: "encoder.0.attention", step: "context", head: 1, times: 0 };
const OTHER: EditJson = { at: "encoder.0.attention", step: "context", head: 0, times: 0 };

/** The page's address with its history, as far as the explorer uses them. */
class Pages {
  entries = [""];
  place = 0;
  listeners: (() => void)[] = [];

  get hash(): string {
    return this.entries[this.place];
  }

  pushState = (_: unknown, __: string, address: string): void => {
    this.entries = [...this.entries.slice(0, ++this.place), address];
  };

  replaceState = (_: unknown, __: string, address: string): void => {
    this.entries[this.place] = address;
  };

  go(by: number): void {
    this.place += by;
    this.listeners.forEach((listen) => listen());
  }
}

let pages: Pages;
let asked: AskTrace[];

function sourceOf(own: Answering, views: ViewName[] = []): Source {
  const source: Source = {
    views,
    ask: (name, asked) => askOwn(own, name, asked),
    during: () => source,
  };
  return source;
}

function explorerOf(fixed?: Meta): Explorer {
  const trace = async (request: AskTrace): Promise<Meta> => {
    asked.push(request);
    return fixed ?? ({ id: String(asked.length), source: request.source, edits: request.edits, sites: [] } as never);
  };
  const run = async (): Promise<RunFacts> => ({ examples: [{ source: "first" }] }) as RunFacts;
  return new Explorer(sourceOf({ trace, run }, ["model", "head", "intervene"]));
}

async function started(explorer = explorerOf()): Promise<Explorer> {
  await explorer.start();
  return explorer;
}

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] }); // an address that is still to be written ends with its test
  pages = new Pages();
  asked = [];
  vi.stubGlobal("location", pages);
  vi.stubGlobal("history", pages);
  vi.stubGlobal("matchMedia", () => ({ matches: false, addEventListener: () => {} }));
  vi.stubGlobal("addEventListener", (_: string, listen: () => void) => pages.listeners.push(listen));
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

describe("an address", () => {
  it("that is gone to while an answer comes is not lost, and its event finds it", async () => {
    const explorer = await started();
    expect(pages.hash).toContain("#/model");
    pages.entries[0] = "#/head?source=first"; // its event comes later
    await explorer.ask({ source: "second" });
    expect(pages.hash).toBe("#/head?source=first");
    pages.go(0);
    expect(explorer.view).toBe("head");
  });

  it("says what was kept soon after another change once it is read", async () => {
    const explorer = await started();
    explorer.keep("unit8", 3);
    explorer.keep("lang", "de");
    expect(pages.hash).not.toContain("lang=de"); // browsers refuse more than a hundred changes in half a minute
    explorer.publish();
    expect(pages.hash).toContain("lang=de");
  });
});

describe("a page", () => {
  const opening = { site: "decoder.0.cross", head: 2 };
  const sites = ["decoder.0.cross", "decoder.1.cross"].map((name) => ({ name, slot: "cross", n_heads: 4 }));

  async function opened(
    hash: string,
    at: RunFacts["opening"] | null = opening,
  ): Promise<[string, string | undefined, HeadChoice]> {
    pages.entries[0] = hash;
    const trace = async ({ source }: AskTrace): Promise<Meta> => ({ id: "1", source, sites }) as never;
    const run = async (): Promise<RunFacts> =>
      ({ examples: [{ source: "first" }], opening: at ?? undefined }) as RunFacts;
    const explorer = new Explorer(sourceOf({ trace, run }, ["model", "head", "intervene"]));
    await explorer.start();
    return [explorer.view, explorer.site?.name, explorer.head];
  }

  it("opens on the head that the run opens on", async () => {
    expect(await opened("")).toEqual(["head", "decoder.0.cross", 2]);
    expect(await opened("#/?theme=dark&glance=1")).toEqual(["head", "decoder.0.cross", 2]);
    expect(await opened("", { site: "decoder.1.cross", head: "mean" })).toEqual(["head", "decoder.1.cross", "mean"]);
  });

  it("opens on the model where the run says nothing", async () => {
    expect(await opened("", null)).toEqual(["model", "decoder.1.cross", 0]);
  });

  it("leaves the place to Learn where its address names a chapter", async () => {
    expect(await opened("#/?learn=tokens")).toEqual(["model", "decoder.1.cross", 0]);
  });

  it("opens where its address says", async () => {
    expect(await opened("#/model")).toEqual(["model", "decoder.0.cross", 2]);
    expect(await opened("#/?source=second")).toEqual(["model", "decoder.0.cross", 2]);
    expect(await opened("#/?site=decoder.1.cross&head=1")).toEqual(["model", "decoder.1.cross", 1]);
  });
});

describe("texts", () => {
  it("are a step of the history each, and come back with Back and Forward", async () => {
    const explorer = await started();
    await explorer.submit("second\nline", null);
    await explorer.submit("third", null);
    expect(pages.entries).toHaveLength(3);
    pages.go(-1);
    await vi.waitFor(() => expect(explorer.meta?.source).toBe("second\nline"));
    expect(explorer.request?.source).toBe("second\nline");
    pages.go(-1);
    await vi.waitFor(() => expect(explorer.meta?.source).toBe("first"));
    pages.go(2);
    await vi.waitFor(() => expect(explorer.meta?.source).toBe("third"));
    expect(pages.entries).toHaveLength(3);
  });

  it("that are asked for again, and what is edited, are no step", async () => {
    const explorer = await started();
    await explorer.submit("first", null);
    await explorer.edit([OFF]);
    await explorer.showUnchanged(true);
    expect(pages.entries).toHaveLength(1);
  });

  it("of a link that was just opened are no step either", async () => {
    pages.entries = ["#/head?source=linked&head=0"];
    const explorer = await started();
    expect(explorer.meta?.source).toBe("linked");
    expect(pages.entries).toHaveLength(1);
  });
});

describe("edits", () => {
  it("are undone and redone, one or all", async () => {
    const explorer = await started();
    await explorer.edit([OFF]);
    await explorer.edit([OFF, OTHER]);
    await explorer.undo();
    expect(explorer.edits).toEqual([OFF]);
    await explorer.redo();
    expect(explorer.edits).toEqual([OFF, OTHER]);
    await explorer.edit([]);
    expect(explorer.edits).toEqual([]);
    await explorer.undo();
    expect(explorer.edits).toEqual([OFF, OTHER]);
    expect(asked.at(-1)?.edits).toEqual([OFF, OTHER]);
  });

  it("of a link can be undone", async () => {
    pages.entries = [`#/head?source=x&edits=${encodeURIComponent(JSON.stringify([OFF]))}`];
    const explorer = await started();
    expect(explorer.edits).toEqual([OFF]);
    await explorer.undo();
    expect(explorer.edits).toEqual([]);
  });

  it("are set aside while the unchanged model is shown, and stay in the address", async () => {
    const explorer = await started();
    await explorer.edit([OFF]);
    await explorer.showUnchanged(true);
    expect(asked.at(-1)?.edits).toEqual([]);
    expect([explorer.unchanged, explorer.edits, explorer.shownRequest?.edits]).toEqual([true, [OFF], []]);
    expect(pages.hash).toContain("unchanged=1");
    await explorer.submit("another", null);
    expect([explorer.unchanged, explorer.edits]).toEqual([true, [OFF]]);
    await explorer.showUnchanged(false);
    expect(asked.at(-1)).toMatchObject({ source: "another", edits: [OFF] });
    expect(pages.hash).not.toContain("unchanged");
  });

  it("act again where another is made, and where both models are compared", async () => {
    const explorer = await started();
    await explorer.edit([OFF]);
    await explorer.showUnchanged(true);
    await explorer.edit([OFF, OTHER]);
    expect(explorer.unchanged).toBe(false);
    await explorer.showUnchanged(true);
    explorer.select({ view: "intervene" });
    await vi.waitFor(() => expect(explorer.unchanged).toBe(false));
    expect(asked.at(-1)?.edits).toEqual([OFF, OTHER]);
  });

  it("of a saved page are those it was saved with", async () => {
    const explorer = explorerOf({ id: "", source: "first", edits: [OFF], sites: [] } as unknown as Meta);
    await explorer.start();
    expect(explorer.edits).toEqual([OFF]);
  });
});

describe("steps of training", () => {
  const IDS = [1, 7, 8];
  const run = {
    examples: [{ source: "first" }],
    target: "writes",
    step: 90,
    steps: [60, 90],
    film: [0, 1, 64],
  } as RunFacts;

  function filmed(): Explorer {
    const trace = async (request: AskTrace): Promise<Meta> => {
      asked.push(request);
      return {
        id: String(asked.length),
        source: request.source,
        edits: [],
        sites: [],
        sides: { decoder: { ids: IDS } },
      } as never;
    };
    return new Explorer(sourceOf({ trace, run: async () => run }, ["model"]));
  }

  it("are those of the film and of the checkpoints together", async () => {
    const explorer = await started(filmed());
    expect(explorer.steps).toEqual([0, 1, 60, 64, 90]);
    expect(explorer.step).toBe(90);
  });

  it("keep the output of the run's own step, unless each shall write its own", async () => {
    const explorer = await started(filmed());
    await explorer.goToStep(1);
    expect(explorer.request).toMatchObject({ source: "first", step: 1, target: [7, 8] });
    await explorer.goToStep(1, false);
    expect([explorer.request?.target, explorer.ownOutput]).toEqual([null, true]);
    await explorer.goToStep(64);
    expect([explorer.request?.target, explorer.step]).toEqual([null, 64]);
    await explorer.goToStep(64, true);
    await explorer.submit("second", null);
    expect(explorer.request).toMatchObject({ source: "second", step: 64, target: [7, 8] });
    await explorer.goToStep(90);
    expect([explorer.request?.step, explorer.step]).toEqual([null, 90]);
  });

  it("that were not kept are not asked for, and the address is written when the slider rests", async () => {
    const explorer = await started(filmed());
    const before = asked.length;
    await explorer.goToStep(5);
    expect(asked).toHaveLength(before);
    await explorer.goToStep(0);
    expect(pages.hash).not.toContain("step=0");
    vi.runAllTimers();
    expect(pages.hash).toContain("step=0");
    expect(pages.entries).toHaveLength(1);
  });

  it("that are new while the run trains are found, and the weights that are shown stay", async () => {
    const first = { examples: [{ source: "first" }], step: 8, steps: [8], film: [0, 8], training: true };
    const answers = [first, first, { ...first, step: 32, steps: [8, 32], film: [0, 8, 16, 32] }];
    const explorer = explorerOf();
    explorer.source.ask = sourceOf({
      trace: async ({ source }) => ({ id: "1", source, edits: [], sites: [] }) as never,
      run: async () => (answers.shift() ?? first) as RunFacts,
    }).ask;
    await explorer.start();
    const run = explorer.run;
    await explorer.followTraining();
    expect(explorer.run).toBe(run);
    await explorer.followTraining();
    expect(explorer.steps).toEqual([0, 8, 16, 32]);
    expect(explorer.step).toBe(8);
  });

  it("of a run that does not train are not asked for again", async () => {
    const explorer = await started();
    const run = vi.fn();
    explorer.source.ask = run;
    await explorer.followTraining();
    expect(run).not.toHaveBeenCalled();
  });
});

describe("what the address asks for", () => {
  it("is not traced again where only a view's own words have changed", async () => {
    const explorer = await started();
    await explorer.edit([OFF]);
    const before = asked.length;
    for (const view of ["head", "model"]) {
      pages.entries[pages.place] = pages.hash.replace(/^#\/\w+/, `#/${view}`);
      pages.go(0);
      expect(explorer.view).toBe(view);
    }
    expect(asked).toHaveLength(before);
    const turned = { times: 0, head: 1, step: "context", at: "encoder.0.attention" }; // the parts in another order
    pages.entries[pages.place] = `#/model?source=first&head=0&edits=${encodeURIComponent(JSON.stringify([turned]))}`;
    pages.go(0);
    expect(asked).toHaveLength(before);
    pages.entries[pages.place] = "#/model?source=first&step=3";
    pages.go(0);
    expect(asked).toHaveLength(before + 1);
  });

  it("is written and held to as a loaded page does it, where the trace is there already", async () => {
    const sites = [{ name: "encoder.0.attention", n_heads: 2, n_query: 3, n_key: 3 }];
    const link = "#/head?theme=dark&source=first&by=entropy&site=encoder.0.attention&head=7&query=9&key=2";
    const there = { id: "", source: "first", edits: [], sites } as unknown as Meta;
    pages.entries = [link];
    await explorerOf(there).start();
    const loaded = pages.hash;
    expect(loaded).toBe("#/head?source=first&site=encoder.0.attention&head=0&key=2&theme=dark&by=entropy");

    [pages.entries, pages.listeners] = [[""], []];
    const explorer = explorerOf(there);
    await explorer.start();
    explorer.fail(new Error("of what was asked before"));
    pages.entries[0] = link;
    pages.go(0);
    expect([explorer.head, explorer.query, explorer.key, explorer.error]).toEqual([0, null, 2, null]);
    expect(pages.hash).toBe(loaded);
    pages.entries[0] = "#/model?source=first"; // the theme stays, so a link to what is seen has it
    pages.go(0);
    expect(pages.hash).toBe("#/model?source=first&head=0&theme=dark");
    expect(pages.entries).toHaveLength(1);
  });

  it("may be a view that the page does not have, which is said", async () => {
    const explorer = await started();
    pages.entries[pages.place] = "#/training?source=first";
    pages.go(0);
    expect(explorer.view).toBe("model");
    expect(explorer.error).toContain("does not have the view Training");
  });

  it("wins over an answer that is on its way, also where it is what is shown", async () => {
    const explorer = await started();
    await explorer.submit("second", null);
    pages.go(-1); // "first" is on its way
    pages.go(1); // and not wanted any longer
    await vi.waitFor(() => expect(explorer.busy).toBe(false));
    expect(explorer.meta?.source).toBe("second");
    expect(pages.entries.map((entry) => new URLSearchParams(entry.split("?")[1]).get("source"))).toEqual([
      "first",
      "second",
    ]);
  });
});
