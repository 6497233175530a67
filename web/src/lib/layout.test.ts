import { describe, expect, it } from "vitest";

import { recorded as source } from "../../dev/recorded";
import { cableOf, countsOf, diagramOf, entryOf, grid, laneOf, layersThatFit, someLayers, windowOf } from "./layout";
import type { Meta, RunFacts } from "./source";

const run: RunFacts = await source.ask("run", {});
const meta: Meta = await source.ask("trace", { source: "achtundvierzigtausendsiebenundsechzig" });

function decoderOnly(layers: number): [RunFacts, Meta] {
  const side = { ...run.sides[0], side: "decoder" as const, n_layers: layers };
  const named = (name: string, layer: number): string =>
    name.replace("encoder.", "decoder.").replace(".0.", `.${layer}.`);
  const block = side.boxes.filter((box) => box.layer === 0);
  const boxes = [
    ...side.boxes.filter((box) => box.layer === null && !box.name.endsWith(".norm")),
    ...Array.from({ length: layers }, (_, layer) =>
      block.map((box) => ({ ...box, layer, name: named(box.name, layer) })),
    ).flat(),
  ].map((box) => ({ ...box, name: named(box.name, 0) }));
  const deep = { ...side, boxes, layers: Array.from({ length: layers }, () => side.layers[0]) };
  const sides = { decoder: meta.sides.decoder };
  return [
    { ...run, kind: "decoder", sides: [deep] },
    { ...meta, kind: "decoder", sides },
  ];
}

describe("the window of a long text", () => {
  it("is all of a short one", () => {
    expect(windowOf(10, 5, 24)).toEqual({ first: 0, count: 10 });
  });

  it("has the chosen token in it, at both ends too", () => {
    for (const chosen of [0, 50, 99]) {
      const { first, count } = windowOf(100, chosen, 24);
      expect(count).toBe(24);
      expect(first <= chosen && chosen < first + count).toBe(true);
      expect(first + count).toBeLessThanOrEqual(100);
    }
  });
});

describe("the picture of a model", () => {
  const diagram = diagramOf(run, countsOf(meta), 1040);
  const [encoder, decoder] = diagram.sides;

  it("has every attention once, in order", () => {
    const sites = diagram.sides.flatMap((side) => side.boxes.flatMap((box) => box.site ?? []));
    expect(new Set(sites)).toEqual(new Set(meta.sites.map((site) => site.name)));
    expect(sites).toHaveLength(meta.sites.length);
  });

  it("has boxes that do not overlap", () => {
    for (const side of diagram.sides)
      side.boxes.slice(1).forEach((box, index) => {
        expect(box.x).toBeGreaterThanOrEqual(side.boxes[index].x + side.boxes[index].width);
      });
  });

  it("reads the encoder's output only after it is there", () => {
    const cross = decoder.boxes.find((box) => box.kind === "cross")!;
    expect(cross.x - diagram.bus).toBeGreaterThanOrEqual(encoder.end);
    for (const key of [0, 2, 4]) expect(cableOf(cross, encoder, key, diagram.bus)).toBeGreaterThan(encoder.end);
  });

  it("keeps lanes inside their side, and the two sides apart", () => {
    expect(laneOf(encoder, 4, diagram.line)).toBeLessThan(encoder.bottom);
    expect(encoder.bottom).toBeLessThan(decoder.top);
    expect(entryOf(decoder, encoder, 0)).toBeGreaterThan(decoder.top);
    expect(entryOf(decoder, encoder, 4)).toBeLessThan(decoder.bottom);
    expect(diagram.height).toBeGreaterThanOrEqual(decoder.band.y + decoder.band.height);
  });

  it("takes the room there is", () => {
    const wide = diagramOf(run, countsOf(meta), 1500);
    expect(wide.width).toBeGreaterThan(diagram.width);
    expect(wide.width).toBeLessThanOrEqual(1500);
  });

  it("of a deep decoder is as wide as it needs to be", () => {
    const [whole, part] = decoderOnly(12);
    const deep = diagramOf(whole, countsOf(part), 1040);
    expect(deep.memory).toBeNull();
    expect(deep.answering).toBe("decoder");
    expect(deep.width).toBeGreaterThan(1040);
    expect(deep.sides[0].boxes.filter((box) => box.site !== null)).toHaveLength(12);
  });
});

describe("the layers of a deep model", () => {
  const [whole, part] = decoderOnly(30);
  const layersOf = (sides: RunFacts["sides"]): number[] => [
    ...new Set(sides.flatMap((side) => side.boxes.flatMap((box) => box.layer ?? []))),
  ];

  it.each([360, 1040, 1500])("are as many as fit into %i pixels, and no more", (room) => {
    const most = layersThatFit(whole, countsOf(part), room);
    const width = (count: number): number => diagramOf(someLayers(whole, count, 0), countsOf(part), room).width;
    expect(most).toBeGreaterThanOrEqual(1);
    if (most > 1) expect(0.8 * width(most)).toBeLessThanOrEqual(room);
    expect(0.8 * width(most + 1)).toBeGreaterThan(room);
  });

  it("are those around the chosen one, at both ends too", () => {
    for (const [chosen, first] of [
      [0, 0],
      [15, 13],
      [29, 26],
    ])
      // prettier-ignore
      expect(layersOf(someLayers(whole, 4, chosen).sides)).toEqual([0, 1, 2, 3].map((layer) => first + layer));
    expect(layersOf(someLayers(whole, 40, 3).sides)).toHaveLength(30);
  });
});

it("a block is drawn with what it has: the note's has no norm and no sum around its attention", () => {
  const [whole, part] = decoderOnly(1);
  const boxes = whole.sides[0].boxes.filter((box) => !/attention\.(norm|add)/.test(box.name));
  const side = { ...whole.sides[0], boxes };
  const [drawn] = diagramOf({ ...whole, sides: [side] }, countsOf(part), 1040).sides;
  expect(drawn.boxes.map((box) => box.kind)).toEqual(["token", "position", "attention", "norm", "feed_forward", "add"]);
});

describe("the grid of heads", () => {
  it.each([1, 2, 4, 8, 12, 16])("has room for %i heads in the width of an attention", (heads) => {
    const { columns, size, rows } = grid(heads, 84);
    expect(columns * rows).toBeGreaterThanOrEqual(heads);
    expect(columns * size + (columns - 1) * 3).toBeLessThanOrEqual(84.001);
  });
});
