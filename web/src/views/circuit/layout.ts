/** Where the nodes of a circuit stand: columns in the order of the forward pass, the encoder above the decoder. */

import type { CircuitEdge } from "../../lib/source";

export type NodeKind = "embedding" | "head" | "feed_forward" | "constant" | "output";

export interface Place {
  name: string;
  kind: NodeKind;
  label: string;
  /** The middle of its box. */
  x: number;
  y: number;
}

export interface Layout {
  places: Map<string, Place>;
  /** What stands above each column. */
  titles: { text: string; x: number; y: number; side: string }[];
  /** More than there is room where columns would lie on each other: then it is scrolled. */
  width: number;
  height: number;
  box: { wide: number; tall: number };
}

const ABOVE = 52;
const APART = 26;
const LEAST_TALL = 5;
/** From one column to the next: as much as their titles need, in one line or, on a phone, in two. */
const [LEAST_PITCH, NARROW_PITCH] = [62, 37];
/** A letter of a node's name, in pixels. */
export const LETTER = 6.8;
/** Heads stand above the middle and feed-forwards below it, so that edges along the stream are seen beside them. */
const ASIDE = 20;
/** Where a receiver's edge ends on the left of its box, as a share of its height. */
const PORTS: Record<string, number> = { query: -0.32, key: 0, value: 0.32 };

/** The column of a node within its side: embeddings, then of each layer attention, cross-attention and feed-forward. */
export function columnOf(name: string): string {
  const [side, layer, part] = name.split(".");
  if (!/^\d+$/.test(layer)) return `${side}.${layer === "output" ? "output" : "embedding"}`;
  return `${side}.${layer}.${part}`;
}

/** The node whose box an edge ends at, and what of it receives the edge: q, k or v of a head. */
export function receiverOf(receiver: string): { node: string; port: string | null } {
  const found = /^(.*)\.(query|key|value)\.(\d+)$/.exec(receiver);
  return found ? { node: `${found[1]}.head.${found[3]}`, port: found[2] } : { node: receiver, port: null };
}

export function layoutOf(nodes: readonly string[], room: number): Layout {
  const columns = [...new Set(nodes.map(columnOf))].sort((one, other) => rank(one) - rank(other));
  const sides = ["encoder", "decoder"].filter((side) => columns.some((column) => column.startsWith(side)));
  const [wide, narrow] = [placesOf(columns, sides, true), placesOf(columns, sides, false)];
  const folded = room - 16 < LEAST_PITCH * (1 + Math.max(...wide.values()));
  const places = folded ? narrow : wide;
  const last = Math.max(1, ...places.values());
  const pitch = Math.max(folded ? NARROW_PITCH : LEAST_PITCH, (room - 16) / (last + 1));
  const rows = new Map(sides.map((side) => [side, mostIn(nodes, side)]));
  const tall = Math.max(LEAST_TALL, Math.min(26, 420 / Math.max(1, ...rows.values()) - 8));
  const box = { wide: Math.max(8, Math.min(58, pitch - (folded ? 13 : 22))), tall };
  const made: Layout = { places: new Map(), titles: [], width: pitch * (last + 1) + 16, height: 0, box };
  let top = 0;
  for (const side of sides) {
    const middle = top + ABOVE + ASIDE + (rows.get(side)! * (tall + 8)) / 2;
    for (const column of columns.filter((one) => one.startsWith(`${side}.`))) {
      const own = nodes.filter((name) => columnOf(name) === column);
      const x = 8 + pitch * (places.get(column)! + 0.5);
      const aside = column.endsWith("feed_forward") ? ASIDE : /attention|cross/.test(column) ? -ASIDE : 0;
      const start = middle + aside - ((own.length - 1) * (tall + 8)) / 2;
      own.forEach((name, at) => made.places.set(name, { ...described(name), name, x, y: start + at * (tall + 8) }));
      const inside = Math.min(made.width - LEAST_PITCH / 2, Math.max(LEAST_PITCH / 2 + 4, x));
      made.titles.push({ text: column, x: inside, y: top + (folded && places.get(column)! % 2 ? 30 : 14), side });
    }
    top += ABOVE + 2 * ASIDE + rows.get(side)! * (tall + 8) + APART;
  }
  made.height = top - APART + 8;
  return made;
}

/** The line of an edge, from the right of its sender to what receives it. */
export function pathOf(layout: Layout, edge: Pick<CircuitEdge, "sender" | "receiver">): string {
  const { node, port } = receiverOf(edge.receiver);
  const [from, to] = [layout.places.get(edge.sender), layout.places.get(node)];
  if (!from || !to) return "";
  const [x1, x2] = [from.x + layout.box.wide / 2, to.x - layout.box.wide / 2];
  const y2 = to.y + (port === null ? 0 : PORTS[port] * layout.box.tall);
  const bend = x2 < x1 ? 18 : Math.max(18, (x2 - x1) / 2);
  // What goes past other boxes goes in an arc.
  const lift = from.name.split(".")[0] === node.split(".")[0] ? Math.min(64, Math.max(0, (x2 - x1 - 60) / 5)) : 0;
  const numbers = [x1 + bend, from.y - lift, x2 - bend, y2 - lift, x2, y2].map((one) => one.toFixed(1));
  return `M${x1.toFixed(1)} ${from.y.toFixed(1)}C${numbers.join(" ")}`;
}

/** The column of each part; `after`: the decoder begins so far to the right that its first cross-attention comes after the
 * encoder's output. */
function placesOf(columns: string[], sides: string[], after: boolean): Map<string, number> {
  const places = new Map<string, number>();
  for (const side of sides) {
    const own = columns.filter((column) => column.startsWith(`${side}.`));
    const cross = own.findIndex((column) => column.endsWith(".cross"));
    const before =
      after && side === "decoder" && sides.length > 1 ? (places.get("encoder.output") ?? 0) + 1 - cross : 0;
    own.forEach((column, at) => places.set(column, Math.max(0, before) + at));
  }
  return places;
}

function rank(column: string): number {
  const [side, layer, part] = column.split(".");
  const slot = ["attention", "cross", "feed_forward"].indexOf(part);
  const within = { embedding: -1, output: 1e6 }[layer] ?? 4 * Number(layer) + (slot < 0 ? 3 : slot);
  return (side === "decoder" ? 1e7 : 0) + within;
}

function mostIn(nodes: readonly string[], side: string): number {
  const counts = new Map<string, number>();
  for (const name of nodes.filter((one) => one.startsWith(`${side}.`)))
    counts.set(columnOf(name), (counts.get(columnOf(name)) ?? 0) + 1);
  return Math.max(1, ...counts.values());
}

function described(name: string): { kind: NodeKind; label: string } {
  const parts = name.split(".");
  const last = parts.at(-1)!;
  if (parts.includes("head")) return { kind: "head", label: last };
  if (last === "feed_forward") return { kind: "feed_forward", label: "FF" };
  if (last === "output") return { kind: "output", label: last };
  if (parts[1] === "embedding") return { kind: "embedding", label: last };
  return { kind: "constant", label: last };
}
