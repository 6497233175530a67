/** A beam search as a tree: one column a step, the best path straight along the top, and no two lines crossing. */

import type { DecodeNode } from "../../lib/source";
import { piece } from "../../lib/words";

/** In pixels; `gap`: between two columns, where the lines run. */
export const METRICS = { rowHeight: 27, gap: 30, character: 7.3, padding: 8, margin: 14 };

export interface Spot {
  node: DecodeNode;
  label: string;
  row: number;
  x: number;
  y: number;
  width: number;
}

export interface Link {
  from: number;
  to: number;
  path: string;
}

export interface TreeLayout {
  spots: Spot[];
  links: Link[];
  /** Where each step's column begins, and how wide it is. */
  columns: { x: number; width: number }[];
  width: number;
  height: number;
}

const FAMILY: Record<DecodeNode["state"], number> = { best: 0, live: 1, ended: 1, pruned: 2 };

/** Children of each node, the best path first, then what lived, then what was dropped; each by its total. */
export function childrenOf(nodes: readonly DecodeNode[]): Map<number | null, DecodeNode[]> {
  const found = new Map<number | null, DecodeNode[]>();
  for (const node of nodes) found.set(node.parent, [...(found.get(node.parent) ?? []), node]);
  for (const family of found.values()) {
    family.sort((one, other) => FAMILY[one.state] - FAMILY[other.state] || other.total - one.total);
  }
  return found;
}

/** A row for each node: its parent's where that is free, in an order in which no lines cross, and no row too many. */
export function rowsOf(nodes: readonly DecodeNode[]): Map<number, number> {
  const steps = columnsInOrder(nodes);
  const limit = Math.max(0, ...steps.map((column) => column.length));
  const rows = new Map<number, number>();
  for (const column of steps) {
    const wanted = column.map((node) => (node.parent === null ? 0 : (rows.get(node.parent) ?? 0)));
    stacked(wanted, limit).forEach((row, place) => rows.set(column[place].id, row));
  }
  return rows;
}

export function layTree(nodes: readonly DecodeNode[]): TreeLayout {
  const rows = rowsOf(nodes);
  const columns = columnsOf(nodes);
  const spots = nodes.map((node) => spotOf(node, rows.get(node.id) ?? 0, columns));
  const known = new Map(spots.map((spot) => [spot.node.id, spot]));
  const links = spots.flatMap((spot) => {
    const parent = spot.node.parent === null ? undefined : known.get(spot.node.parent);
    return parent === undefined ? [] : [linkOf(parent, spot, columns)];
  });
  const last = columns.at(-1) ?? { x: 0, width: 0 };
  const deepest = Math.max(0, ...rows.values());
  const height = 2 * METRICS.margin + (deepest + 1) * METRICS.rowHeight;
  return { spots, links, columns, width: last.x + last.width + METRICS.margin, height };
}

/** What is still held when so many steps are done: the beam's hypotheses, those that have ended, and their ancestors. */
export function standing(nodes: readonly DecodeNode[], step: number): Set<number> {
  const known = new Map(nodes.map((node) => [node.id, node]));
  const last = Math.max(0, ...nodes.filter((node) => node.step <= step).map((node) => node.step));
  const ends = nodes.filter((node) => node.step <= last && holds(node, last));
  const found = new Set<number>();
  for (const end of ends) {
    let node: DecodeNode | undefined = end;
    while (node !== undefined && !found.has(node.id)) {
      found.add(node.id);
      node = node.parent === null ? undefined : known.get(node.parent);
    }
  }
  return found;
}

/** The node that arrow keys reach: left its parent, right its first child, up and down its column. */
export function neighbour(layout: TreeLayout, id: number, key: string): number | null {
  const here = layout.spots.find((spot) => spot.node.id === id);
  if (here === undefined) return null;
  if (key === "ArrowLeft") return here.node.parent;
  if (key === "ArrowRight") return topmost(layout.spots.filter((spot) => spot.node.parent === id));
  const column = layout.spots.filter((spot) => spot.node.step === here.node.step).sort((a, b) => a.row - b.row);
  const place = column.indexOf(here) + ({ ArrowUp: -1, ArrowDown: 1 }[key] ?? Infinity);
  return column[place]?.node.id ?? null;
}

/** The nodes of each step, children in the order of their parents. */
function columnsInOrder(nodes: readonly DecodeNode[]): DecodeNode[][] {
  const children = childrenOf(nodes);
  const columns: DecodeNode[][] = [];
  let column = children.get(null) ?? [];
  while (column.length > 0) {
    columns.push(column);
    column = column.flatMap((node) => children.get(node.id) ?? []);
  }
  return columns;
}

/** Each as near below what it wants as the order leaves it, and all above the limit. */
function stacked(wanted: readonly number[], limit: number): number[] {
  let free = 0;
  const rows = wanted.map((row) => {
    const taken = Math.max(row, free);
    free = taken + 1;
    return taken;
  });
  return rows.map((row, place) => Math.min(row, limit - (rows.length - place)));
}

function topmost(spots: Spot[]): number | null {
  return spots.length === 0 ? null : spots.reduce((one, other) => (other.row < one.row ? other : one)).node.id;
}

function holds(node: DecodeNode, last: number): boolean {
  return node.state === "ended" || node.state === "best" || (node.state === "live" && node.step === last);
}

function labelOf(node: DecodeNode): string {
  return node.parent === null && node.text === "" ? "" : piece(node.text);
}

function widthOf(label: string): number {
  return label === "" ? 2 * METRICS.padding : [...label].length * METRICS.character + 2 * METRICS.padding;
}

function columnsOf(nodes: readonly DecodeNode[]): { x: number; width: number }[] {
  const widths: number[] = [];
  for (const node of nodes) widths[node.step] = Math.max(widths[node.step] ?? 0, widthOf(labelOf(node)));
  let x = METRICS.margin;
  return Array.from(widths, (width = 0) => {
    const column = { x, width };
    x += width + METRICS.gap;
    return column;
  });
}

function spotOf(node: DecodeNode, row: number, columns: { x: number; width: number }[]): Spot {
  const label = labelOf(node);
  const y = METRICS.margin + (row + 0.5) * METRICS.rowHeight;
  return { node, label, row, x: columns[node.step].x, y, width: widthOf(label) };
}

/** Straight to the end of the parent's column, then a curve down to the child. */
function linkOf(from: Spot, to: Spot, columns: { x: number; width: number }[]): Link {
  const column = columns[from.node.step];
  const turn = column.x + column.width;
  const middle = (turn + to.x) / 2;
  const path = `M${from.x + from.width},${from.y}H${turn}C${middle},${from.y} ${middle},${to.y} ${to.x},${to.y}`;
  return { from: from.node.id, to: to.node.id, path };
}
