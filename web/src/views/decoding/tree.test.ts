import { describe, expect, it } from "vitest";

import type { DecodeNode } from "../../lib/source";
import { childrenOf, layTree, METRICS, neighbour, rowsOf, standing } from "./tree";

type Short = [id: number, parent: number | null, step: number, total: number, state: DecodeNode["state"]];

function node([id, parent, step, total, state]: Short): DecodeNode {
  const text = parent === null ? "" : `t${id}`;
  return { id, parent, step, token: id, text, log_prob: 0, total, state, rank: 0, candidates: [] };
}

/** A beam of two over three steps: 1 → 5 → 9 is best, 2 → 6 lived until it was dropped, 10 ended. */
const NODES = (
  [
    [0, null, 0, 0, "best"],
    [1, 0, 1, -1, "best"],
    [2, 0, 1, -0.5, "live"],
    [3, 0, 1, -3, "pruned"],
    [4, 1, 2, -4, "pruned"],
    [5, 1, 2, -1.5, "best"],
    [6, 2, 2, -1.8, "live"],
    [7, 2, 2, -5, "pruned"],
    [8, 6, 3, -6, "pruned"],
    [9, 5, 3, -2, "best"],
    [10, 5, 3, -2.5, "ended"],
  ] satisfies Short[]
).map(node);

function random(seed: number): () => number {
  let state = seed;
  return () => (state = (state * 1103515245 + 12345) % 2147483648) / 2147483648;
}

function grown(seed: number, steps: number, width: number): DecodeNode[] {
  const next = random(seed);
  const nodes = [node([0, null, 0, 0, "best"])];
  let live = [nodes[0]];
  for (let step = 1; step <= steps; step++) {
    const made = live.flatMap((parent) => [0, 1, 2].map(() => node([0, parent.id, step, -next(), "pruned"])));
    made.forEach((one) => (one.id = nodes.push(one) - 1));
    live = made.toSorted((a, b) => b.total - a.total).slice(0, width);
    live.forEach((one) => (one.state = "live"));
  }
  return nodes;
}

it("order puts the best path before a child of a higher total, and what was dropped last", () => {
  expect(
    childrenOf(NODES)
      .get(0)
      ?.map((one) => one.id),
  ).toEqual([1, 2, 3]);
  expect(
    childrenOf(NODES)
      .get(1)
      ?.map((one) => one.id),
  ).toEqual([5, 4]);
});

describe("rows", () => {
  it("keeps the best path straight along the top", () => {
    const rows = rowsOf(NODES);
    expect([0, 1, 5, 9].map((id) => rows.get(id))).toEqual([0, 0, 0, 0]);
  });

  it("never puts two nodes of a step in one row, nor uses more rows than the fullest step has nodes", () => {
    for (let seed = 1; seed <= 20; seed++) {
      const nodes = grown(seed, 12, 4);
      const rows = rowsOf(nodes);
      const taken = nodes.map((one) => `${one.step} ${rows.get(one.id)}`);
      expect(new Set(taken).size).toBe(nodes.length);
      expect(Math.max(...rows.values())).toBeLessThan(12);
      expect(Math.min(...rows.values())).toBe(0);
    }
  });

  it("keeps an only child beside its parent where there is room", () => {
    const chain = [...NODES, node([11, 10, 4, -3, "live"])];
    expect(rowsOf(chain).get(11)).toBe(rowsOf(chain).get(10));
  });

  it("lets no two lines between the same columns cross", () => {
    for (let seed = 1; seed <= 20; seed++) {
      const nodes = grown(seed, 12, 4);
      const rows = rowsOf(nodes);
      for (const one of nodes) {
        for (const other of nodes) {
          if (one.step !== other.step || one.parent === null || other.parent === null) continue;
          const above = rows.get(one.parent)! - rows.get(other.parent)!;
          const below = rows.get(one.id)! - rows.get(other.id)!;
          expect(above * below).toBeGreaterThanOrEqual(0);
        }
      }
    }
  });
});

describe("layout", () => {
  it("gives every node a place inside the picture, in its step's column", () => {
    const layout = layTree(NODES);
    expect(layout.spots).toHaveLength(NODES.length);
    for (const spot of layout.spots) {
      expect(spot.x).toBe(layout.columns[spot.node.step].x);
      expect(spot.x + spot.width).toBeLessThanOrEqual(layout.width);
      expect(spot.y).toBeGreaterThan(0);
      expect(spot.y).toBeLessThan(layout.height);
    }
  });

  it("draws one line to each node but the root, and columns that do not touch", () => {
    const layout = layTree(NODES);
    expect(layout.links.map((link) => link.to)).toEqual(NODES.slice(1).map((one) => one.id));
    layout.columns.slice(1).forEach((column, before) => {
      const previous = layout.columns[before];
      expect(column.x - previous.x - previous.width).toBeCloseTo(METRICS.gap);
    });
  });

  it("stands without nodes", () => {
    expect(layTree([]).spots).toEqual([]);
    expect(layTree([]).width).toBeGreaterThan(0);
  });
});

describe("standing", () => {
  it("holds what the beam holds after a step", () => {
    expect([...standing(NODES, 1)].sort()).toEqual([0, 1, 2]);
    expect([...standing(NODES, 2)].sort()).toEqual([0, 1, 2, 5, 6]);
  });

  it("lets go of a branch whose children were all dropped, and keeps one that ended", () => {
    const held = standing(NODES, 3);
    expect(held.has(2)).toBe(false);
    expect(held.has(6)).toBe(false);
    expect(held.has(10)).toBe(true);
    expect(standing(NODES, 99)).toEqual(held);
  });
});

describe("neighbour", () => {
  const layout = layTree(NODES);
  it("goes to the parent, the first child and along the column", () => {
    expect(neighbour(layout, 5, "ArrowLeft")).toBe(1);
    expect(neighbour(layout, 1, "ArrowRight")).toBe(5);
    expect(neighbour(layout, 1, "ArrowDown")).toBe(2);
    expect(neighbour(layout, 2, "ArrowUp")).toBe(1);
  });

  it("stays where there is nothing", () => {
    expect(neighbour(layout, 0, "ArrowLeft")).toBeNull();
    expect(neighbour(layout, 9, "ArrowRight")).toBeNull();
    expect(neighbour(layout, 1, "ArrowUp")).toBeNull();
    expect(neighbour(layout, 1, "Enter")).toBeNull();
  });
});
