import { describe, expect, it } from "vitest";

import { groupsOf } from "../../lib/places";
import type { Readings, SideName, SiteMeta, Slot } from "../../lib/source";
import { type Cell, gridOf, listOf, MOST_LISTED, neighbour, sorted, valuesOf } from "./grid";

function site(side: SideName, layer: number, n_heads: number, slot: Slot = "attention"): SiteMeta {
  return { name: `${side}.${layer}.${slot}`, side, layer, slot, n_heads } as SiteMeta;
}

function layers(count: number, heads: number, side: SideName = "decoder", slot: Slot = "attention"): SiteMeta[] {
  return Array.from({ length: count }, (_, layer) => site(side, layer, heads, slot));
}

const DEEP = groupsOf(layers(30, 9));
const SMALL = groupsOf([...layers(2, 4, "encoder"), ...layers(2, 4), ...layers(2, 4, "decoder", "cross")]);
const UNEVEN = groupsOf([site("encoder", 0, 8), site("encoder", 1, 2), site("encoder", 2, 5)]);

function at(cells: readonly Cell[], name: string): Cell {
  return cells.find((cell) => cell.name === name)!;
}

describe.each([
  ["30 layers of 9 heads", DEEP, 270],
  ["three kinds of 2 layers of 4 heads", SMALL, 24],
  ["layers of different widths", UNEVEN, 15],
  ["one head", groupsOf(layers(1, 1)), 1],
  ["48 layers of 32 heads", groupsOf(layers(48, 32)), 48 * 32],
])("a grid of %s", (_, groups, count) => {
  it.each([300, 330, 700, 1020, 1600])("has every head once, and none on another, %i pixels wide", (room) => {
    const { cells, size, width, height } = gridOf(groups, room);
    expect(cells).toHaveLength(count);
    expect(new Set(cells.map((cell) => cell.name)).size).toBe(count);
    expect(new Set(cells.map((cell) => `${cell.x} ${cell.y}`)).size).toBe(count);
    expect(size).toBeGreaterThanOrEqual(20);
    const [xs, ys] = [cells.map((cell) => cell.x), cells.map((cell) => cell.y)];
    expect(Math.max(...xs) + size).toBeLessThanOrEqual(width);
    expect(Math.max(...ys) + size).toBeLessThanOrEqual(height);
    for (const places of [xs, ys]) {
      const steps = [...new Set(places)].sort((a, b) => a - b);
      steps.slice(1).forEach((place, index) => expect(place - steps[index]).toBeGreaterThanOrEqual(size));
    }
  });
});

it("layers run across on a desk and down on a phone", () => {
  const desk = gridOf(DEEP, 1020);
  expect(at(desk.cells, "L12H3").y).toBe(at(desk.cells, "L0H3").y);
  expect(desk.width).toBeLessThanOrEqual(1020);
  const phone = gridOf(DEEP, 330);
  expect(at(phone.cells, "L12H3").x).toBe(at(phone.cells, "L0H3").x);
  expect(phone.width).toBeLessThanOrEqual(330);
  expect(phone.size).toBeGreaterThanOrEqual(24);
  expect(gridOf(groupsOf(layers(12, 3)), 330).size).toBeGreaterThanOrEqual(24);
});

it("kinds of attention stand side by side where there is room", () => {
  const { cells, labels } = gridOf(SMALL, 1020);
  expect(at(cells, "E0H0").y).toBe(at(cells, "C0H0").y);
  expect(labels.filter((one) => one.title)).toHaveLength(3);
  const narrow = gridOf(SMALL, 300);
  expect(at(narrow.cells, "E0H0").y).toBeLessThan(at(narrow.cells, "C0H0").y);
});

it("titles do not run into each other, however long they are", () => {
  const german = SMALL.map((group) => ({ ...group, title: "Self-Attention im Encoder" }));
  for (const room of [300, 500, 516, 560, 640, 1020]) {
    const titles = gridOf(german, room).labels.filter((one) => one.title);
    titles.slice(1).forEach((one, index) => {
      const before = titles[index];
      expect(one.y > before.y || one.x - before.x >= 180).toBe(true);
    });
  }
});

describe("arrows", () => {
  it("lead over layers and heads, as they are laid out", () => {
    const { cells } = gridOf(DEEP, 1020);
    const go = (from: string, key: string): string | undefined => neighbour(cells, at(cells, from), key)?.name;
    expect(go("L12H3", "ArrowRight")).toBe("L13H3");
    expect(go("L12H3", "ArrowLeft")).toBe("L11H3");
    expect(go("L12H3", "ArrowDown")).toBe("L12H4");
    expect(go("L12H3", "ArrowUp")).toBe("L12H2");
    expect(go("L29H8", "ArrowRight")).toBeUndefined();
    expect(go("L29H8", "Home")).toBe("L0H0");
    expect(go("L0H0", "End")).toBe("L29H8");
    expect(go("L12H3", "a")).toBeUndefined();
  });

  it("cross from one kind to the next", () => {
    const { cells } = gridOf(SMALL, 1020);
    expect(neighbour(cells, at(cells, "E0H3"), "ArrowRight")?.name).toBe("D0H0");
    expect(neighbour(cells, at(cells, "C1H0"), "ArrowLeft")?.name).toBe("D1H3");
  });

  it("go on over what a narrow layer leaves out", () => {
    const { cells } = gridOf(UNEVEN, 1020);
    expect(neighbour(cells, at(cells, "L0H4"), "ArrowDown")?.name).toBe("L2H4");
  });
});

const READ = new Map<string, Readings>([
  ["encoder.0.attention", { previous: [0.1, 0.9, null, 0.5, 0.5, 0, 0.2, 0.3] } as unknown as Readings],
  ["encoder.1.attention", { previous: [0.7, 0.1] } as unknown as Readings],
]);

it("heads are sorted by what they read; those without a number are left out", () => {
  const heads = valuesOf(UNEVEN, READ, "previous");
  expect(heads).toHaveLength(15);
  const names = (...how: [Parameters<typeof sorted>[1], number]): string[] =>
    sorted(heads, ...how).map((one) => one.name);
  expect(names("highest", -Infinity).slice(0, 4)).toEqual(["L0H1", "L1H0", "L0H3", "L0H4"]);
  expect(names("lowest", -Infinity)[0]).toBe("L0H5");
  expect(names("highest", -Infinity)).toHaveLength(9);
  expect(names("highest", 0.5)).toEqual(["L0H1", "L1H0", "L0H3", "L0H4"]);
  expect(heads[0].name).toBe("L0H0");
});

it("a sorted list fills rows, and has an end", () => {
  const heads = valuesOf(DEEP, new Map(), "previous");
  const { cells, width, height, size } = listOf(heads, 330);
  expect(cells).toHaveLength(MOST_LISTED);
  expect(width).toBeLessThanOrEqual(330);
  expect(Math.max(...cells.map((cell) => cell.x + size))).toBeLessThanOrEqual(width);
  expect(Math.max(...cells.map((cell) => cell.y + size))).toBeLessThan(height);
  expect(listOf([], 330).cells).toEqual([]);
});
