/** Vectors in the plane in which they differ most, turned so that they glide from one plane to the next. */

import { dot } from "./arithmetic";

export type Point = [number, number];

/** The first two principal components of a few vectors: by the eigenvectors of their products with each other, which are
 * far fewer than those of their dimensions. The largest number of a direction is above 0;
 * `share` is what the plane shows of the variance. */
export function planeOf(vectors: readonly ArrayLike<number>[]): { points: Point[]; share: number } {
  const count = vectors.length;
  const width = vectors[0]?.length ?? 0;
  const mean = Array.from({ length: width }, (_, k) => vectors.reduce((sum, one) => sum + one[k], 0) / count);
  const centred = vectors.map((one) => mean.map((middle, k) => one[k] - middle));
  const products = Float64Array.from({ length: count * count }, (_, at) =>
    dot(centred[Math.floor(at / count)], centred[at % count]),
  );
  const { values, vectors: directions } = jacobi(products, count);
  const total = values.reduce((sum, value) => sum + Math.max(0, value), 0);
  const long = [0, 1].map((k) => ((values[k] ?? 0) > 1e-12 * values[0] ? values[k] : 0));
  const signs = directions.slice(0, 2).map((own) => {
    const numbers = mean.map((_, k) => own.reduce((sum, part, row) => sum + part * centred[row][k], 0));
    return Math.sign(numbers.reduce((most, one) => (Math.abs(one) > Math.abs(most) ? one : most), 0)) || 1;
  });
  const along = (row: number, k: number): number => (directions[k]?.[row] ?? 0) * signs[k] * Math.sqrt(long[k]);
  return {
    points: centred.map((_, row) => [along(row, 0), long[1] === 0 ? 0 : along(row, 1)]),
    share: total > 0 ? (long[0] + long[1]) / total : 0,
  };
}

/** The points turned, or mirrored and turned, to lie as near as they can to where the same ones lay before. */
export function turnedTo(before: readonly (Point | null)[], points: readonly Point[]): Point[] {
  const fits = [1, -1].map((mirror) => {
    let [along, across] = [0, 0];
    points.forEach(([x, y], at) => {
      const was = before[at];
      if (!was) return;
      along += was[0] * x + was[1] * mirror * y;
      across += was[1] * x - was[0] * mirror * y;
    });
    return { mirror, along, across, long: Math.hypot(along, across) };
  });
  const { mirror, along, across, long } = fits[0].long >= fits[1].long ? fits[0] : fits[1];
  if (long === 0) return [...points];
  const [cos, sin] = [along / long, across / long];
  return points.map(([x, y]) => [cos * x - sin * mirror * y, sin * x + cos * mirror * y]);
}

/** All eigenvalues of a small symmetric matrix, the largest first, by turning pairs of its axes. */
function jacobi(given: Float64Array, n: number): { values: number[]; vectors: number[][] } {
  const a = given.slice();
  const v = Array.from({ length: n }, (_, i) => Array.from({ length: n }, (_, j): number => (i === j ? 1 : 0)));
  for (let sweep = 0; sweep < 40; sweep++) {
    let off = 0;
    for (let p = 0; p < n; p++) for (let q = 0; q < p; q++) off += a[p * n + q] ** 2;
    if (off <= 1e-24 * dot(a, a)) break;
    for (let p = 0; p < n; p++)
      for (let q = p + 1; q < n; q++) {
        const apq = a[p * n + q];
        if (apq === 0) continue;
        const theta = (a[q * n + q] - a[p * n + p]) / (2 * apq);
        const t = (theta >= 0 ? 1 : -1) / (Math.abs(theta) + Math.sqrt(theta * theta + 1));
        const c = 1 / Math.sqrt(t * t + 1);
        const s = t * c;
        for (let k = 0; k < n; k++) {
          const [kp, kq] = [a[k * n + p], a[k * n + q]];
          [a[k * n + p], a[k * n + q]] = [c * kp - s * kq, s * kp + c * kq];
        }
        for (let k = 0; k < n; k++) {
          const [pk, qk] = [a[p * n + k], a[q * n + k]];
          [a[p * n + k], a[q * n + k]] = [c * pk - s * qk, s * pk + c * qk];
        }
        for (let k = 0; k < n; k++) {
          const [kp, kq] = [v[k][p], v[k][q]];
          [v[k][p], v[k][q]] = [c * kp - s * kq, s * kp + c * kq];
        }
      }
  }
  const order = Array.from({ length: n }, (_, i) => i).sort((i, j) => a[j * n + j] - a[i * n + i]);
  return { values: order.map((i) => a[i * n + i]), vectors: order.map((i) => v.map((row) => row[i])) };
}
