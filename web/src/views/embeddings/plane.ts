/** From points of the plane to pixels and back, which labels fit, and which tokens a search finds. */

export type Point = [number, number];

export interface Frame {
  width: number;
  height: number;
  /** The point of the plane in the middle. */
  centre: Point;
  /** Pixels for a unit of the plane, the same along both directions. */
  scale: number;
}

const MARGIN = 26;

/** All points, or those around one of them, so many times larger. */
export function frameOf(
  points: readonly Point[],
  size: { width: number; height: number },
  zoom = 1,
  around: Point | null = null,
): Frame {
  let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const [x, y] of points) {
    left = Math.min(left, x);
    right = Math.max(right, x);
    low = Math.min(low, y);
    high = Math.max(high, y);
  }
  if (points.length === 0) [left, right, low, high] = [0, 0, 0, 0];
  const fits = Math.min(
    (size.width - 2 * MARGIN) / Math.max(right - left, 1e-12),
    (size.height - 2 * MARGIN) / Math.max(high - low, 1e-12),
  );
  const middle: Point = [(left + right) / 2, (low + high) / 2];
  return { ...size, centre: zoom > 1 && around !== null ? around : middle, scale: Math.max(0, fits) * zoom };
}

/** Up on the page is up in the plane. */
export function pixelOf([x, y]: Point, frame: Frame): Point {
  return [
    frame.width / 2 + (x - frame.centre[0]) * frame.scale,
    frame.height / 2 - (y - frame.centre[1]) * frame.scale,
  ];
}

/** The point nearest to a pixel, no farther than `reach` of them; null where there is none. */
export function pointAt(points: readonly Point[], frame: Frame, at: Point, reach = 14): number | null {
  let [best, found]: [number, number | null] = [reach * reach, null];
  for (let place = 0; place < points.length; place++) {
    const [x, y] = pixelOf(points[place], frame);
    const far = (x - at[0]) ** 2 + (y - at[1]) ** 2;
    if (far <= best) [best, found] = [far, place];
  }
  return found;
}

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** Which of these boxes can be drawn without covering one before it, and within the picture. */
export function withoutOverlap(boxes: readonly Box[], size: { width: number; height: number }): boolean[] {
  const drawn: Box[] = [];
  return boxes.map((box) => {
    const inside = box.x >= 0 && box.y >= 0 && box.x + box.width <= size.width && box.y + box.height <= size.height;
    const free = drawn.every(
      (other) =>
        box.x >= other.x + other.width ||
        other.x >= box.x + box.width ||
        box.y >= other.y + other.height ||
        other.y >= box.y + box.height,
    );
    if (inside && free) drawn.push(box);
    return inside && free;
  });
}

/** The tokens that a search finds: those that are it, then those that begin with it, then those that have it within. */
export function searched(tokens: readonly string[], text: string, most: number): number[] {
  const wanted = text.trim().toLowerCase();
  if (wanted === "") return [];
  const ranked: [number, number][] = [];
  tokens.forEach((token, id) => {
    const plain = token.replace(/^[\s▁]+/, "").toLowerCase();
    const rank = plain === wanted ? 0 : plain.startsWith(wanted) ? 1 : plain.includes(wanted) ? 2 : 3;
    if (rank < 3) ranked.push([rank, id]);
  });
  return ranked
    .sort((one, other) => one[0] - other[0] || one[1] - other[1])
    .slice(0, most)
    .map(([, id]) => id);
}
