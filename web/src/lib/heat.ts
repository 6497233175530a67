/** Draws a matrix of any size on a canvas: the tiles seen, the tokens along both sides, the cell that is read. */

import { fit, kept, levelFor, seen, type Span, type Viewport, TILE, type TilePlace, zoomed } from "./tiles";
import type { TileStore } from "./tilestore";
import { isolated, piece } from "./words";

export interface Inks {
  ground: string;
  ink: string;
  faint: string;
  line: string;
  query: string;
  key: string;
  /** The ground of masked cells, and the lines across it. */
  masked: string;
  hatch: string;
  font: string;
}

export interface Marked {
  query: number | null;
  key: number | null;
}

/** The tiles of the numbers, and those of the mask where there is one. */
export interface Stores {
  numbers: TileStore;
  mask: TileStore | null;
}

const GAP = 6;
/** Pixels that a letter's line needs. */
export const LEAST = 12;

/** Where things lie on the canvas, in CSS pixels, and what is seen of the matrix. */
export class Heat {
  viewport: Viewport = { x: 0, y: 0, zoom: 1 };
  width = 0;
  height = 0;
  left = 0;
  top = 0;
  private touched = false;
  /** The masked cells as they were hatched last, and what they were hatched from. */
  private hatched: { look: string; tiles: readonly unknown[]; layer: HTMLCanvasElement } | null = null;

  constructor(
    readonly queryTokens: string[],
    readonly keyTokens: string[],
  ) {}

  get screen(): { width: number; height: number } {
    return { width: Math.max(1, this.width - this.left), height: Math.max(1, this.height - this.top) };
  }

  get rows(): number {
    return this.queryTokens.length;
  }

  get columns(): number {
    return this.keyTokens.length;
  }

  /** Whether all of the matrix is seen. */
  get whole(): boolean {
    return this.viewport.zoom <= fit(this.screen, this.rows, this.columns) * 1.0001;
  }

  /** Takes the size of the canvas; what was seen stays seen if the reader had chosen it. */
  resize(width: number, height: number, measure: (text: string) => number): void {
    this.width = width;
    this.height = height;
    // Names that have no room until somebody zooms in take less of it.
    const small = Math.min(width / Math.max(1, this.columns), height / Math.max(1, this.rows)) < LEAST * 0.6;
    const arrows = this.queryTokens[0]?.includes(ARROW);
    this.left = Math.min(width * (small ? 0.16 : arrows ? 0.34 : 0.26), longest(this.queryTokens, measure) + GAP * 2);
    this.top = Math.min(height * (small ? 0.16 : 0.26), longest(this.keyTokens, measure) + GAP * 2);
    const numbers = (count: number): number => measure(String(count - 1)) + GAP * 2;
    this.left = Math.max(this.left, numbers(this.rows));
    this.top = Math.max(this.top, numbers(this.columns));
    const start = { x: 0, y: 0, zoom: fit(this.screen, this.rows, this.columns) };
    this.viewport = this.bounded(this.touched ? this.viewport : start);
  }

  pan(dx: number, dy: number): void {
    this.touched = true;
    this.viewport = this.bounded({
      ...this.viewport,
      x: this.viewport.x - dx / this.viewport.zoom,
      y: this.viewport.y - dy / this.viewport.zoom,
    });
  }

  zoom(factor: number, x = this.left + this.screen.width / 2, y = this.top + this.screen.height / 2): void {
    this.touched = true;
    this.viewport = this.bounded(zoomed(this.viewport, factor, { x: x - this.left, y: y - this.top }));
  }

  all(): void {
    this.touched = false;
    this.viewport = this.bounded({ x: 0, y: 0, zoom: fit(this.screen, this.rows, this.columns) });
  }

  /** Brings a cell into viewport, if it is not. */
  follow(query: number, key: number): void {
    const { x, y, zoom } = this.viewport;
    const shift = (place: number, start: number, span: number): number =>
      Math.min(place, Math.max(start, place + 1 - span));
    this.viewport = this.bounded({
      zoom,
      x: shift(key, x, this.screen.width / zoom),
      y: shift(query, y, this.screen.height / zoom),
    });
  }

  /** The cell under a point of the canvas. */
  cellAt(x: number, y: number): { query: number; key: number } | null {
    if (x < this.left || y < this.top) return null;
    const key = Math.floor(this.viewport.x + (x - this.left) / this.viewport.zoom);
    const query = Math.floor(this.viewport.y + (y - this.top) / this.viewport.zoom);
    return key >= 0 && key < this.columns && query >= 0 && query < this.rows ? { query, key } : null;
  }

  /** The tiles to draw: the level seen, and one that covers all to stand in for what is not there yet. */
  tiles(ratio: number): { seen: TilePlace[]; standIn: TilePlace[] } {
    const level = levelFor(this.viewport.zoom, ratio, this.rows, this.columns);
    const coarsest = levelFor(0, 1, this.rows, this.columns);
    const at = (one: number): TilePlace[] => seen(this.viewport, this.screen, one, this.rows, this.columns);
    return { seen: at(level), standIn: level === coarsest ? [] : at(coarsest) };
  }

  draw(context: CanvasRenderingContext2D, stores: Stores, ratio: number, inks: Inks, marked: Marked): void {
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = inks.ground;
    context.fillRect(0, 0, this.width, this.height);
    const { standIn, seen } = this.tiles(ratio);
    const places = [...standIn, ...seen];
    stores.numbers.want(places);
    stores.mask?.want(places);
    this.inside(context, () => {
      for (const place of places) this.drawTile(context, stores.numbers, place);
      if (stores.mask) this.drawMasked(context, stores.mask, standIn, seen, ratio, inks);
      if (this.viewport.zoom >= 12) this.drawGrid(context, inks);
    });
    this.drawMarked(context, inks, marked);
    this.drawTokens(context, inks, marked);
  }

  private inside(context: CanvasRenderingContext2D, work: () => void): void {
    context.save();
    context.beginPath();
    context.rect(this.left, this.top, this.screen.width, this.screen.height);
    context.clip();
    work();
    context.restore();
  }

  /** Hatches the cells that no query of theirs may attend: the tiles of the mask cut the hatching out. */
  private drawMasked(
    context: CanvasRenderingContext2D,
    mask: TileStore,
    standIn: TilePlace[],
    seen: TilePlace[],
    ratio: number,
    inks: Inks,
  ): void {
    const there = seen.every((place) => mask.get(place) !== undefined);
    const places = there ? seen : standIn;
    const { x, y, zoom } = this.viewport;
    const tiles = places.map((place) => mask.get(place));
    const look = [x, y, zoom, this.width, this.height, this.left, this.top, ratio, inks.masked, inks.hatch].join(" ");
    // While only the marked cell moves, the hatching stays what it was.
    if (this.hatched?.look !== look || !sameTiles(this.hatched.tiles, tiles)) {
      const layer = this.hatched?.layer ?? context.canvas.ownerDocument.createElement("canvas");
      layer.width = Math.ceil(this.width * ratio);
      layer.height = Math.ceil(this.height * ratio);
      const cut = layer.getContext("2d")!;
      cut.setTransform(ratio, 0, 0, ratio, 0, 0);
      for (const place of places) this.drawTile(cut, mask, place);
      cut.globalCompositeOperation = "source-in";
      cut.setTransform(1, 0, 0, 1, 0, 0);
      cut.fillStyle = hatching(cut, ratio, inks);
      cut.fillRect(0, 0, layer.width, layer.height);
      this.hatched = { look, tiles, layer };
    }
    const { layer } = this.hatched;
    context.drawImage(layer, 0, 0, layer.width / ratio, layer.height / ratio);
  }

  private drawTile(context: CanvasRenderingContext2D, store: TileStore, place: TilePlace): void {
    const tile = store.get(place);
    if (tile === undefined) return;
    const cells = 2 ** place.level;
    const x = this.xOf(place.column * TILE * cells);
    const y = this.yOf(place.row * TILE * cells);
    context.imageSmoothingEnabled = false;
    const width = Math.min(tile.columns * cells, this.columns - place.column * TILE * cells) * this.viewport.zoom;
    const height = Math.min(tile.rows * cells, this.rows - place.row * TILE * cells) * this.viewport.zoom;
    context.drawImage(tile.picture, x, y, width, height);
  }

  private drawGrid(context: CanvasRenderingContext2D, inks: Inks): void {
    context.strokeStyle = inks.line;
    context.lineWidth = 0.5;
    context.beginPath();
    const [right, bottom] = [this.xOf(this.columns), this.yOf(this.rows)];
    const [from, to] = [this.xOf(0), this.yOf(0)];
    for (const key of this.span(this.viewport.x, this.screen.width, this.columns))
      line(context, this.xOf(key), to, this.xOf(key), bottom);
    for (const query of this.span(this.viewport.y, this.screen.height, this.rows))
      line(context, from, this.yOf(query), right, this.yOf(query));
    context.stroke();
  }

  private drawMarked(context: CanvasRenderingContext2D, inks: Inks, marked: Marked): void {
    const size = Math.max(3, this.viewport.zoom);
    this.inside(context, () => {
      context.lineWidth = 1.5;
      const [x0, x1, y0, y1] = [this.xOf(0), this.xOf(this.columns), this.yOf(0), this.yOf(this.rows)];
      if (marked.query !== null) {
        context.strokeStyle = inks.query;
        context.strokeRect(x0 + 0.75, this.yOf(marked.query), x1 - x0 - 1.5, size);
      }
      if (marked.key !== null) {
        context.strokeStyle = inks.key;
        context.strokeRect(this.xOf(marked.key), y0 + 0.75, size, y1 - y0 - 1.5);
      }
      if (marked.query === null || marked.key === null) return;
      context.strokeStyle = inks.ink;
      context.lineWidth = 2;
      context.strokeRect(this.xOf(marked.key), this.yOf(marked.query), size, size);
    });
  }

  private drawTokens(context: CanvasRenderingContext2D, inks: Inks, marked: Marked): void {
    context.font = inks.font;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const query of this.labelled(this.viewport.y, this.screen.height, this.rows, marked.query)) {
      const y = this.yOf(query + 0.5);
      if (y < this.top || y > this.height) continue;
      context.fillStyle = query === marked.query ? inks.query : inks.faint;
      context.fillText(this.name(context, this.queryTokens, query, marked.query, this.left), this.left - GAP, y);
    }
    context.textAlign = "left";
    for (const key of this.labelled(this.viewport.x, this.screen.width, this.columns, marked.key)) {
      const x = this.xOf(key + 0.5);
      if (x < this.left || x > this.width) continue;
      context.fillStyle = key === marked.key ? inks.key : inks.faint;
      context.save();
      context.translate(x, this.top - GAP);
      context.rotate(-Math.PI / 2);
      context.fillText(this.name(context, this.keyTokens, key, marked.key, this.top), 0, 0);
      context.restore();
    }
  }

  /** A token where all have room, shortened to the margin; its number where they have not, but for the marked one. */
  private name(
    context: CanvasRenderingContext2D,
    tokens: string[],
    place: number,
    marked: number | null,
    margin: number,
  ): string {
    if (this.viewport.zoom < LEAST && place !== marked) return String(place);
    return clip(tokens[place], margin - GAP * 2, (text) => context.measureText(text).width);
  }

  /** The places that have a label: all where there is room, else every few, and the marked one. */
  private labelled(start: number, span: number, count: number, marked: number | null): number[] {
    const every = evenly(LEAST / this.viewport.zoom);
    const shown = this.span(start, span, count).filter((place) => place % every === 0 && place < count);
    if (marked === null || shown.includes(marked)) return shown;
    return [...shown.filter((place) => Math.abs(place - marked) >= every), marked];
  }

  private span(start: number, size: number, count: number): number[] {
    const first = Math.max(0, Math.floor(start));
    const last = Math.min(count, Math.ceil(start + size / this.viewport.zoom));
    return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => first + index);
  }

  /** Where a cell lies on the canvas. */
  boxOf({ query, key }: { query: number; key: number }): { x: number; y: number; size: number } {
    return { x: this.xOf(key), y: this.yOf(query), size: this.viewport.zoom };
  }

  /** The cells that are seen, also in part. */
  shown(): { queries: Span; keys: Span } {
    const of = (start: number, size: number, count: number): Span => {
      const first = Math.max(0, Math.floor(start + 1e-6));
      return { first, count: Math.min(count, Math.ceil(start + size / this.viewport.zoom - 1e-6)) - first };
    };
    return {
      queries: of(this.viewport.y, this.screen.height, this.rows),
      keys: of(this.viewport.x, this.screen.width, this.columns),
    };
  }

  private xOf(key: number): number {
    return this.left + (key - this.viewport.x) * this.viewport.zoom;
  }

  private yOf(query: number): number {
    return this.top + (query - this.viewport.y) * this.viewport.zoom;
  }

  /** A small matrix sits at the left top, next to its labels, not in the middle. */
  private bounded(viewport: Viewport): Viewport {
    const made = kept(viewport, this.screen, this.rows, this.columns);
    return { ...made, x: Math.max(0, made.x), y: Math.max(0, made.y) };
  }
}

function sameTiles(one: readonly unknown[], other: readonly unknown[]): boolean {
  return one.length === other.length && one.every((tile, place) => tile === other[place]);
}

/** At least this many, as a number that is counted by: 1, 2, 5, 10, 20, 50 … */
export function evenly(least: number): number {
  if (least <= 1) return 1;
  const unit = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((step) => step * unit).find((step) => step >= least) ?? 10 * unit;
}

/** Lines from the lower left to the upper right, in pixels of the canvas. */
export function hatching(
  context: CanvasRenderingContext2D,
  ratio: number,
  inks: Pick<Inks, "masked" | "hatch">,
): string | CanvasPattern {
  const size = Math.max(4, Math.round(6 * ratio));
  const one = context.canvas.ownerDocument.createElement("canvas");
  one.width = one.height = size;
  const drawn = one.getContext("2d")!;
  drawn.fillStyle = inks.masked;
  drawn.fillRect(0, 0, size, size);
  drawn.strokeStyle = inks.hatch;
  drawn.lineWidth = Math.max(1, ratio);
  drawn.beginPath();
  for (const shift of [-size, 0, size]) line(drawn, shift, size, shift + size, 0);
  drawn.stroke();
  return context.createPattern(one, "repeat") ?? inks.masked;
}

function longest(tokens: string[], measure: (text: string) => number): number {
  const sample = tokens.length > 400 ? tokens.slice(0, 400) : tokens;
  return Math.max(20, ...sample.map(measure));
}

function line(context: CanvasRenderingContext2D, x0: number, y0: number, x1: number, y1: number): void {
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
}

/** Shorten a name to the room; of "read → written" both parts. */
export function clip(name: string, room: number, measure: (text: string) => number): string {
  if (measure(name) <= room) return name;
  const [read, written] = name.split(ARROW);
  if (written === undefined) return cut(name, room, measure);
  const arrow = measure(ARROW);
  const half = (room - arrow) / 2;
  const first = cut(read, Math.max(half, room - arrow - measure(written)), measure);
  return first + ARROW + cut(written, room - arrow - measure(first), measure);
}

/** The names of rows: of each token that is read and, where something is written there, of what: "read → written". */
export function rowNames(read: readonly string[], written: readonly string[] | null): string[] {
  return read.map((token, at) => {
    const next = written?.[at];
    return next === undefined ? piece(token) : isolated(piece(token)) + ARROW + isolated(piece(next));
  });
}

/** Between the token that is read and the one that is written. */
export const ARROW = " → ";

/** Cut a text to the room, with its marks of direction left in pairs. */
function cut(text: string, room: number, measure: (text: string) => number): string {
  if (measure(text) <= room) return text;
  const marked = text.startsWith("\u2068") && text.endsWith("\u2069");
  const letters = [...(marked ? text.slice(1, -1) : text)];
  const whole = (): string => (marked ? `\u2068${letters.join("")}…\u2069` : `${letters.join("")}…`);
  while (letters.length > 1 && measure(whole()) > room) letters.pop();
  return whole();
}
