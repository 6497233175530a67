/** Where each head stands in the overview: a grid of layers by heads for each kind of attention, or a sorted list. */

import { type Group, shortName } from "../../lib/places";
import { arrowOf } from "../../lib/pressing";
import type { Readings, SiteMeta } from "../../lib/source";
import type { ReadingName } from "../head/reading";
import { t } from "../../text";

export interface Cell {
  site: SiteMeta;
  head: number;
  name: string;
  x: number;
  y: number;
}

export interface Label {
  text: string;
  x: number;
  y: number;
  anchor: "start" | "middle" | "end";
  title?: boolean;
}

export interface Grid {
  width: number;
  height: number;
  /** How large a cell is, without the gap after it. */
  size: number;
  cells: Cell[];
  labels: Label[];
}

export type Order = "layer" | "highest" | "lowest";

/** Room for layer numbers at the left, for a title and head numbers above, and between two groups. */
const LEFT = 36;
const ABOVE = 44;
const APART = 28;
const GAP = 3;
/** How wide a letter of a title is, about. */
const LETTER = 7.4;
const SMALLEST = 24;
/** Layers that run across stand closer: there are few things to touch above and below. */
const CLOSEST = 20;
/** Narrower than this is a phone, where every cell is touched. */
const PHONE = 600;
const LARGEST = 84;
/** A sorted cell has its name and its number below. */
const LISTED = { size: 60, below: 32, apart: 8 };
export const MOST_LISTED = 120;

interface Shape {
  group: Group;
  /** Whether layers go from left to right and heads down. */
  across: boolean;
  columns: number;
  rows: number;
}

/** Layers run across where there are more of them than heads and they fit; else down, as on a phone. */
export function gridOf(groups: readonly Group[], room: number): Grid {
  const shapes = groups.map((group) => shapeOf(group, room));
  const columns = shapes.reduce((total, shape) => total + shape.columns, 0);
  const beside = Math.floor((room - shapes.length * LEFT - (shapes.length - 1) * APART) / columns) - GAP;
  const apart = (shapes.length - 1) * APART;
  const inRow = shapes.reduce((total, shape) => total + widthOf(shape, Math.min(LARGEST, beside)), apart);
  const together = beside >= SMALLEST && (shapes.length === 1 || inRow <= room);
  const size = Math.min(LARGEST, together ? beside : Math.min(...shapes.map((shape) => sizeAlone(shape, room))));
  const [cells, labels]: [Cell[], Label[]] = [[], []];
  let [x, y, width] = [0, 0, 0];
  for (const shape of shapes) {
    const [wide, high] = [widthOf(shape, size), ABOVE + shape.rows * (size + GAP)];
    place(shape, groups, x, y, size, cells, labels);
    width = Math.max(width, x + wide);
    if (together) x += wide + APART;
    else y += high + APART / 2;
  }
  const height = Math.max(0, ...cells.map((cell) => cell.y)) + size + GAP;
  return { width, height, size, cells, labels };
}

/** The same heads one after another, in rows, each with its name and its number below. */
export function listOf(heads: readonly Pick<Cell, "site" | "head" | "name">[], room: number): Grid {
  const pitch = { x: LISTED.size + LISTED.apart, y: LISTED.size + LISTED.below + LISTED.apart };
  const columns = Math.max(1, Math.floor((room + LISTED.apart) / pitch.x));
  const cells = heads.slice(0, MOST_LISTED).map((one, index) => ({
    ...one,
    x: (index % columns) * pitch.x,
    y: Math.floor(index / columns) * pitch.y,
  }));
  const rows = Math.ceil(cells.length / columns);
  return { width: columns * pitch.x - LISTED.apart, height: rows * pitch.y, size: LISTED.size, cells, labels: [] };
}

/** Every head with what it reads; null where nothing was measured, or not yet. */
export function valuesOf(
  groups: readonly Group[],
  readings: ReadonlyMap<string, Readings>,
  by: ReadingName,
): { site: SiteMeta; head: number; name: string; value: number | null }[] {
  return groups.flatMap((group) =>
    group.sites.flatMap((site) =>
      Array.from({ length: site.n_heads }, (_, head) => ({
        site,
        head,
        name: shortName(site, head, groups),
        value: readings.get(site.name)?.[by][head] ?? null,
      })),
    ),
  );
}

/** The heads that have a number of at least `least`, the highest or the lowest first; equal ones as in the model. */
export function sorted<One extends { value: number | null }>(
  heads: readonly One[],
  order: Order,
  least: number,
): One[] {
  const known = heads.filter((one) => one.value !== null && one.value >= least);
  const sign = order === "lowest" ? 1 : -1;
  return known.sort((one, other) => sign * (one.value! - other.value!));
}

/** The cell that an arrow leads to: the nearest in that direction, on the same line before any other. */
export function neighbour(cells: readonly Cell[], from: Cell, key: string): Cell | null {
  if (key === "Home") return cells[0] ?? null;
  if (key === "End") return cells.at(-1) ?? null;
  const [right, down] = arrowOf({ key });
  if (right === 0 && down === 0) return null;
  let best: Cell | null = null;
  let least = Infinity;
  for (const cell of cells) {
    const [dx, dy] = [cell.x - from.x, cell.y - from.y];
    const ahead = dx * right + dy * down;
    const aside = Math.abs(dx * down) + Math.abs(dy * right);
    if (ahead > 0.5 && ahead + 1000 * aside < least) [best, least] = [cell, ahead + 1000 * aside];
  }
  return best;
}

function shapeOf(group: Group, room: number): Shape {
  const layers = group.sites.length;
  const heads = Math.max(...group.sites.map((site) => site.n_heads));
  const closest = room < PHONE ? SMALLEST : CLOSEST;
  const across = layers > heads && LEFT + layers * (closest + GAP) <= room;
  return { group, across, columns: across ? layers : heads, rows: across ? heads : layers };
}

/** A group is as wide as its cells, and as its title. */
function widthOf(shape: Shape, size: number): number {
  return Math.max(LEFT + shape.columns * (size + GAP), LETTER * shape.group.title.length);
}

function sizeAlone(shape: Shape, room: number): number {
  const fits = Math.floor((room - LEFT) / shape.columns) - GAP;
  return Math.max(shape.across ? CLOSEST : SMALLEST, fits);
}

function place(
  { group, across, columns, rows }: Shape,
  groups: readonly Group[],
  left: number,
  top: number,
  size: number,
  cells: Cell[],
  labels: Label[],
): void {
  const pitch = size + GAP;
  const [x0, y0] = [left + LEFT, top + ABOVE];
  labels.push({ text: group.title, x: left, y: top + 14, anchor: "start", title: true });
  const every = Math.ceil(22 / pitch);
  for (let column = 0; column < columns; column += every) {
    const number = across ? group.sites[column].layer : column;
    labels.push({ text: String(number), x: x0 + column * pitch + size / 2, y: y0 - 6, anchor: "middle" });
  }
  labels.push({ text: across ? t.heads.axis.layer : t.heads.axis.head, x: x0 - 6, y: y0 - 6, anchor: "end" });
  for (let row = 0; row < rows; row++) {
    const text = across ? `H${row}` : `L${group.sites[row].layer}`;
    labels.push({ text, x: x0 - 6, y: y0 + row * pitch + size / 2 + 4, anchor: "end" });
  }
  group.sites.forEach((site, layer) => {
    for (let head = 0; head < site.n_heads; head++) {
      const [column, row] = across ? [layer, head] : [head, layer];
      const name = shortName(site, head, groups);
      cells.push({ site, head, name, x: x0 + column * pitch, y: y0 + row * pitch });
    }
  });
}
