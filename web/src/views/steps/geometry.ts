/** Where everything of the four steps stands, wide or as narrow as a phone. Numbers only: no drawing, no data. */

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Point {
  x: number;
  y: number;
}

export interface RowPlace {
  /** The middle of the row. */
  y: number;
  key: Box;
  value: Box;
  token: Point;
  /** What is pointed at to choose the row. */
  area: Box;
}

/** A flow from a value to the sum: an outline to fill, or where there is little room a line of that width. */
export interface Flow {
  path: string;
  line: number | null;
}

export interface Layout {
  wide: boolean;
  width: number;
  height: number;
  rowHeight: number;
  /** `projected` is the query before its turn; where nothing is turned it is the vector's own place. */
  query: { token: Point; input: Box; projected: Box; vector: Box };
  rows: RowPlace[];
  sum: Box;
  context: Box;
  /** Middles of the columns of numbers, and of the headings. */
  scoreX: number;
  weightX: number;
  headings: { y: number; vectors: number; scores: number; weights: number; sum: number };
  /** From the query to the key of a row. */
  arrow(row: number): string;
  tip(row: number): Point;
  /** From a row's value to its part of the sum, when the rows weigh this much and `grown` of it is drawn. */
  flow(row: number, weights: ArrayLike<number>, grown: number): Flow;
  /** A point of that flow, from 0 at the value to 1 at the sum. */
  along(row: number, weights: ArrayLike<number>, share: number): Point;
}

export const STRIP = 18;
const WIDE = 700;

/** `input`: whether what the query was made from is drawn too; `turned`: whether the query is turned after its map. */
export function layoutOf(width: number, rows: number, input = true, turned = false): Layout {
  return width >= WIDE ? wideLayout(width, rows, input, turned) : narrowLayout(width, rows, input, turned);
}

/** Where a row's part of the sum begins and ends, from 0 to 1, rows from first to last. */
export function part(row: number, weights: ArrayLike<number>): [number, number] {
  let total = 0;
  let before = 0;
  for (let index = 0; index < weights.length; index++) {
    if (index < row) before += weights[index];
    total += weights[index];
  }
  const whole = Math.max(1, total);
  return [before / whole, (before + weights[row]) / whole];
}

function cubic(a: Point, b: Point, c: Point, d: Point, t: number): Point {
  const mix = (p: number, q: number, r: number, s: number): number =>
    (1 - t) ** 3 * p + 3 * (1 - t) ** 2 * t * q + 3 * (1 - t) * t ** 2 * r + t ** 3 * s;
  return { x: mix(a.x, b.x, c.x, d.x), y: mix(a.y, b.y, c.y, d.y) };
}

function strip(x: number, middle: number, width: number, height = STRIP): Box {
  return { x, y: middle - height / 2, width, height };
}

function wideLayout(width: number, count: number, input: boolean, turned: boolean): Layout {
  const rowHeight = count > 8 ? 33 : 40;
  const top = 54;
  const height = Math.max(top + count * rowHeight + 12, turned ? 300 : 256);
  const middle = top + (height - top - 12) / 2;
  const first = middle - (count * rowHeight) / 2 + rowHeight / 2;
  const share = (part: number): number => part * width;
  const low = middle + (turned ? 66 : 34);
  const vector = strip(8, low, share(0.125));
  const keyX = share(0.305);
  const wideKey = share(0.125);
  const tokenX = keyX + wideKey + share(0.052);
  const valueX = keyX + wideKey + share(0.104);
  const sumX = valueX + wideKey + share(0.17);
  const tall = Math.min(190, Math.max(110, count * 20));
  const sum: Box = { x: sumX, y: middle - tall / 2, width: 10, height: tall };
  const contextX = sumX + 10 + share(0.045);
  const context = strip(contextX, middle, width - contextX - 8);
  const rows = Array.from({ length: count }, (_, row): RowPlace => {
    const y = first + row * rowHeight;
    return {
      y,
      key: strip(keyX, y, wideKey),
      value: strip(valueX, y, wideKey),
      token: { x: tokenX, y },
      area: { x: keyX - 78, y: y - rowHeight / 2 + 2, width: valueX + wideKey + 60 - keyX + 78, height: rowHeight - 4 },
    };
  });
  const from: Point = { x: vector.x + vector.width + 6, y: low };
  const flat = 66;
  const lead = 12;
  const flowX = valueX + wideKey + 62;
  const curve = (
    row: number,
    weights: ArrayLike<number>,
  ): { start: Point; end: Point; thin: number; thick: number } => {
    const [low, high] = part(row, weights);
    const thick = (high - low) * tall;
    return {
      start: { x: flowX, y: rows[row].y },
      end: { x: sumX - 1, y: sum.y + ((low + high) / 2) * tall },
      thin: Math.min(rowHeight - 10, (high - low) * 26),
      thick,
    };
  };
  return {
    wide: true,
    width,
    height,
    rowHeight,
    query: {
      token: { x: 8 + vector.width / 2, y: middle + (input ? (turned ? -84 : -62) : turned ? -28 : 6) },
      input: strip(8, middle - (turned ? 44 : 20), vector.width),
      projected: turned ? strip(8, middle + 12, vector.width) : vector,
      vector,
    },
    rows,
    sum,
    context,
    scoreX: keyX - 42,
    weightX: flowX - 31,
    headings: {
      y: 16,
      vectors: 8 + vector.width / 2,
      scores: (from.x + keyX) / 2,
      weights: (flowX - 31 + sumX) / 2,
      sum: contextX + context.width / 2,
    },
    arrow(row) {
      const end = { x: keyX - 8, y: rows[row].y };
      const bend = end.x - flat;
      const reach = (bend - from.x) * 0.55;
      return `M${from.x} ${from.y}C${from.x + reach} ${from.y} ${bend - reach} ${end.y} ${bend} ${end.y}H${end.x}`;
    },
    tip: (row) => ({ x: keyX - 3, y: rows[row].y }),
    flow(row, weights, grown) {
      const { start, end, thin, thick } = curve(row, weights);
      const a = (Math.max(thin, 0.6) / 2) * grown;
      const b = (Math.max(thick, 0.6) / 2) * grown;
      const bend = start.x + lead;
      const mid = (bend + end.x) / 2;
      return {
        line: null,
        path:
          `M${start.x} ${start.y - a}H${bend}C${mid} ${start.y - a} ${mid} ${end.y - b} ${end.x} ${end.y - b}` +
          `V${end.y + b}C${mid} ${end.y + b} ${mid} ${start.y + a} ${bend} ${start.y + a}H${start.x}Z`,
      };
    },
    along(row, weights, share) {
      const { start, end } = curve(row, weights);
      const bend = { x: start.x + lead, y: start.y };
      const mid = (bend.x + end.x) / 2;
      const turn = lead / (end.x - start.x);
      if (share <= turn) return { x: start.x + (share / turn) * lead, y: start.y };
      return cubic(bend, { x: mid, y: start.y }, { x: mid, y: end.y }, end, (share - turn) / (1 - turn));
    },
  };
}

function narrowLayout(width: number, count: number, input: boolean, turned: boolean): Layout {
  const rowHeight = 40;
  const saved = (input ? 0 : 46) - (turned ? 44 : 0);
  const top = 158 - saved;
  const bus = 18;
  const scores = 62;
  const weights = 58;
  const tokens = Math.min(96, Math.max(58, width * 0.19));
  const wideKey = (width - scores - weights - tokens - bus) / 2;
  const valueX = scores + wideKey + tokens;
  const height = top + count * rowHeight + 88;
  const vector = strip(8, 98 - saved, Math.min(width * 0.46, 200));
  const rows = Array.from({ length: count }, (_, row): RowPlace => {
    const y = top + rowHeight / 2 + row * rowHeight;
    return {
      y,
      key: strip(scores, y, wideKey),
      value: strip(valueX, y, wideKey),
      token: { x: scores + wideKey + tokens / 2, y },
      area: { x: 14, y: y - rowHeight / 2 + 2, width: width - bus - 18, height: rowHeight - 4 },
    };
  });
  const low = top + count * rowHeight + 40;
  const sum: Box = { x: width * 0.6, y: low - bus / 2, width: 8, height: bus };
  const context = strip(8, low, width * 0.6 - 34);
  const right = width - 2;
  const turn = 7;
  const lane = (row: number, amounts: ArrayLike<number>): { x: number; y: number; thick: number } => {
    const [from, to] = part(row, amounts);
    const centre = ((from + to) / 2) * bus;
    return { x: right - centre, y: sum.y + bus - centre, thick: (to - from) * bus };
  };
  return {
    wide: false,
    width,
    height,
    rowHeight,
    query: {
      token: { x: 8, y: 18 },
      input: strip(8, 54, vector.width),
      projected: turned ? strip(8, 54 + (input ? 44 : 0), vector.width) : vector,
      vector,
    },
    rows,
    sum,
    context,
    scoreX: 38,
    weightX: valueX + wideKey + 28,
    headings: {
      y: top - 12,
      vectors: scores + wideKey + tokens / 2,
      scores: 38,
      weights: valueX + wideKey + 28,
      sum: 8,
    },
    arrow(row) {
      const y = rows[row].y;
      return `M8 ${vector.y + vector.height + 4}V${y - turn}Q8 ${y} ${8 + turn} ${y}H${scores - 7}`;
    },
    tip: (row) => ({ x: scores - 2, y: rows[row].y }),
    flow(row, amounts, grown) {
      const { x, y, thick } = lane(row, amounts);
      const start = rows[row].y;
      const path =
        `M${width - bus - 4} ${start}H${x - turn}Q${x} ${start} ${x} ${start + turn}` +
        `V${y - turn}Q${x} ${y} ${x - turn} ${y}H${sum.x + sum.width}`;
      return { path, line: Math.max(thick, 0.6) * grown };
    },
    along(row, amounts, share) {
      const { x, y } = lane(row, amounts);
      const corners = [
        { x: width - bus - 4, y: rows[row].y },
        { x, y: rows[row].y },
        { x, y },
        { x: sum.x + sum.width, y },
      ];
      return walk(corners, share);
    },
  };
}

/** A point of a way of straight parts, at a share of its length. */
function walk(corners: Point[], share: number): Point {
  const lengths = corners.slice(1).map((to, index) => Math.hypot(to.x - corners[index].x, to.y - corners[index].y));
  let left = share * lengths.reduce((sum, length) => sum + length, 0);
  for (const [index, length] of lengths.entries()) {
    if (left <= length && length > 0) {
      const [from, to] = [corners[index], corners[index + 1]];
      return { x: from.x + ((to.x - from.x) * left) / length, y: from.y + ((to.y - from.y) * left) / length };
    }
    left -= length;
  }
  return corners[corners.length - 1];
}
