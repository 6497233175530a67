/** Where everything of the whole model's picture lies: lanes of tokens, and the boxes they pass on their way. */

import type { BoxKind, BoxSpec, Meta, RunFacts, SideName, SideSpec } from "./source";
import type { Span } from "./tiles";
import { BOX_TITLES } from "./words";

/** A box that all lanes of a side pass through. */
export interface Box {
  name: string;
  kind: BoxKind;
  side: SideName;
  layer: number | null;
  x: number;
  width: number;
  title: string;
  /** The name of the value that comes out here. */
  out: string;
  /** The attention that happens here. */
  site: string | null;
  heads: number;
}

export interface SideLayout {
  side: SideName;
  shown: Span;
  /** Where the tokens' names end, and where the lanes begin and end. */
  start: number;
  end: number;
  top: number;
  bottom: number;
  /** The strip for labels and heads: above the lanes, or below. */
  band: { y: number; height: number; below: boolean };
  boxes: Box[];
}

export interface Diagram {
  width: number;
  height: number;
  line: number;
  sides: SideLayout[];
  /** From where to where the encoder's output runs on to be read by the decoder. */
  memory: { from: number; to: number } | null;
  /** How wide the cables are, side by side, that bring it down to a cross-attention. */
  bus: number;
  /** Where the output's bars begin; they end at the right. */
  output: number;
  answering: SideName;
}

/** Room for the tokens and their ids, for the output's bars, and for the names of keys inside a cross-attention. */
export const NAMES = 150;
export const OUTPUT = 194;
export const KEYS = 52;
const GAP = 4;
const WIDTHS: Record<Exclude<BoxKind, "attention" | "cross" | "output">, number> = {
  token: 11,
  position: 11,
  norm: 7,
  add: 7,
  feed_forward: 17,
};
const MIDDLE = 44;
/** The height of a lane. */
const CLOSEST = 17;
const WIDEST = 26;
/** A drawing is shown no smaller than this: letters keep their size, and would lie on each other. */
export const SMALLEST = 0.8;
/** The two lines over the small pictures, in letters that keep their size in a drawing that is shown smaller. */
const TITLE = 44;

/** The part of a long text that is shown: at most `most` tokens, the chosen one among them. */
export function windowOf(count: number, chosen: number, most: number): Span {
  if (count <= most) return { first: 0, count };
  const first = Math.min(Math.max(0, chosen - Math.floor(most / 2)), count - most);
  return { first, count: most };
}

/** How many tokens each side of a trace has: all that the layout depends on, so that another step keeps it. */
export type TokenCounts = Partial<Record<SideName, number>>;

export function countsOf(meta: Pick<Meta, "sides">): TokenCounts {
  return Object.fromEntries(Object.entries(meta.sides).map(([side, one]) => [side, one.tokens.length]));
}

/** The run with so many of its layers, those around the chosen one; a side that has fewer keeps them all. */
export function someLayers(run: Pick<RunFacts, "sides">, most: number, chosen: number): Pick<RunFacts, "sides"> {
  return {
    sides: run.sides.map((side) => {
      const { first, count } = windowOf(side.n_layers, chosen, most);
      const shown = (layer: number | null): boolean => layer === null || (layer >= first && layer < first + count);
      return { ...side, boxes: side.boxes.filter((box) => shown(box.layer)) };
    }),
  };
}

/** As many layers as there is room for beside each other, and at least one. */
export function layersThatFit(run: Pick<RunFacts, "sides">, counts: TokenCounts, room: number): number {
  const deepest = Math.max(...run.sides.map((side) => side.n_layers));
  for (let most = deepest; most > 1; most--)
    if (diagramOf(someLayers(run, most, 0), counts, room).width * SMALLEST <= room) return most;
  return 1;
}

/** The picture of a run on a text, as wide as there is room; where it is higher than `tall`, lanes lie closer together. */
export function diagramOf(
  run: Pick<RunFacts, "sides">,
  counts: TokenCounts,
  room: number,
  chosen = 0,
  most = 24,
  tall = Infinity,
): Diagram {
  const sides = run.sides.filter((side) => counts[side.side] !== undefined);
  const spans = sides.map((side) => windowOf(counts[side.side]!, chosen, most));
  const bus = busWidth(spans[0].count);
  const attention = attentionWidth(sides, room, bus);
  const first = boxesOf(sides[0], NAMES, attention, bus);
  const laid = sides.length === 1 ? [first] : [first, behind(sides[1], first, attention, bus)];
  const end = Math.max(...laid.map(endOf));
  const width = end + GAP + OUTPUT;
  const shapesOf = (line: number): SideLayout[] =>
    stacked(sides, spans, laid, line, attention, width > room ? UPRIGHT.small : UPRIGHT.whole);
  const rows = spans.reduce((total, span) => total + span.count, 0);
  const wide = Math.min(WIDEST, Math.max(CLOSEST, 372 / rows));
  const over = Math.max(0, bottomOf(shapesOf(wide)) - tall);
  const line = Math.max(CLOSEST, wide - over / rows);
  const shapes = shapesOf(line);
  const last = laid.at(-1)!.findLast((box) => box.kind === "cross");
  return {
    width,
    height: bottomOf(shapes),
    line,
    sides: shapes,
    memory: sides.length === 2 && last ? { from: endOf(first), to: last.x } : null,
    bus,
    output: end + GAP,
    answering: sides.at(-1)!.side,
  };
}

/** The middle of a token's lane. */
export function laneOf(side: SideLayout, token: number, line: number): number {
  return side.top + (token - side.shown.first + 0.5) * line;
}

/** Where a key enters a cross-attention: all the keys shown are spread over the height of the decoder's lanes. */
export function entryOf(queries: SideLayout, keys: SideLayout, key: number): number {
  return queries.top + ((key - keys.shown.first + 0.5) / keys.shown.count) * (queries.bottom - queries.top);
}

/** Where the cable of a key goes down, left of a cross-attention; the last one is the nearest to it. */
export function cableOf(box: Box, keys: SideLayout, key: number, bus: number): number {
  return box.x - 5 - ((keys.shown.first + keys.shown.count - 1 - key) / Math.max(1, keys.shown.count)) * (bus - 8);
}

/** Small pictures of heads under or over an attention: how many in a row, and how large. */
export function grid(heads: number, width: number): { columns: number; size: number; rows: number } {
  const columns = Math.max(1, heads <= 4 ? Math.min(2, heads) : heads <= 9 ? 3 : 4);
  const size = Math.min(40, (width - (columns - 1) * 3) / columns);
  return { columns, size, rows: Math.ceil(heads / columns) };
}

/** Where a head's small picture lies: rows of them, away from the lanes. */
export function thumbAt({ band }: SideLayout, box: Box, head: number): { x: number; y: number; size: number } {
  const { columns, size, rows } = grid(box.heads, box.width);
  const left = box.x + (box.width - columns * size - (columns - 1) * 3) / 2;
  const row = Math.floor(head / columns);
  const top = band.below ? band.y + 8 : band.y + band.height - 8 - rows * (size + 3) + 3;
  return { x: left + (head % columns) * (size + 3), y: top + row * (size + 3), size };
}

/** The tokens of a side that are shown. */
export function tokensOf(side: SideLayout): number[] {
  return Array.from({ length: side.shown.count }, (_, index) => side.shown.first + index);
}

function busWidth(keys: number): number {
  return Math.round(Math.min(44, 10 + 1.8 * keys));
}

function bottomOf(sides: SideLayout[]): number {
  return Math.max(...sides.map((side) => Math.max(side.bottom, side.band.y + side.band.height))) + 4;
}

/** Attention takes what the narrow boxes leave of the room, within bounds. */
function attentionWidth(sides: SideSpec[], room: number, bus: number): number {
  const width = (one: number): number => {
    const first = boxesOf(sides[0], NAMES, one, bus);
    return endOf(sides.length === 1 ? first : behind(sides[1], first, one, bus)) + GAP + OUTPUT;
  };
  const [narrow, wide] = [width(0), width(1)];
  return Math.min(150, Math.max(78, Math.floor((room - narrow) / (wide - narrow))));
}

/** The boxes of a side as the server describes them, one after another; the output is drawn by itself. */
function boxesOf(side: SideSpec, start: number, attention: number, bus: number): Box[] {
  let x = start;
  return side.boxes.flatMap((box) => {
    if (box.kind === "output") return [];
    if (box.kind === "cross") x += bus;
    const placed = placedAt(side, box, x, attention);
    x += placed.width + GAP;
    return [placed];
  });
}

function placedAt(side: SideSpec, box: BoxSpec, x: number, attention: number): Box {
  const common = { name: box.name, kind: box.kind, side: side.side, layer: box.layer, x };
  const told = { title: BOX_TITLES[box.kind], out: box.values.at(-1)!.name };
  if (box.kind !== "attention" && box.kind !== "cross")
    return { ...common, ...told, width: WIDTHS[box.kind as keyof typeof WIDTHS], site: null, heads: 0 };
  const width = box.kind === "cross" ? attention + KEYS : attention;
  const heads = side.layers[box.layer!][box.kind]!.n_heads;
  return { ...common, ...told, width, site: box.name, heads };
}

/** The decoder's boxes, so far to the right that its first cross-attention has the encoder's output. */
function behind(side: SideSpec, encoder: Box[], attention: number, bus: number): Box[] {
  const boxes = boxesOf(side, NAMES, attention, bus);
  const cross = boxes.find((box) => box.kind === "cross");
  const shift = Math.max(0, endOf(encoder) + GAP + bus - (cross?.x ?? NAMES));
  return boxes.map((box) => ({ ...box, x: box.x + shift }));
}

/** Room for the longest name of a narrow box, which stands upright: more where the drawing is shown smaller, since letters
 * keep their size. */
const UPRIGHT = { whole: 84, small: 116 };

function stacked(
  sides: SideSpec[],
  spans: Span[],
  laid: Box[][],
  line: number,
  attention: number,
  least: number,
): SideLayout[] {
  let y = 0;
  return sides.map((side, index) => {
    const below = index === 1;
    const heads = Math.max(...laid[index].map((box) => box.heads), 1);
    const shape = grid(heads, attention);
    const height = Math.max(TITLE + shape.rows * (shape.size + 3) + 2, least);
    const top = below ? y + MIDDLE : y + height;
    const bottom = top + spans[index].count * line;
    y = below ? bottom + height : bottom;
    return {
      side: side.side,
      shown: spans[index],
      start: laid[index][0].x - GAP,
      end: endOf(laid[index]),
      top,
      bottom,
      band: { y: below ? bottom : top - height, height, below },
      boxes: laid[index],
    };
  });
}

function endOf(boxes: Box[]): number {
  const last = boxes.at(-1)!;
  return last.x + last.width;
}
