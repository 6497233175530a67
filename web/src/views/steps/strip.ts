/** A vector as a strip of coloured cells: one path a colour, so that a strip of 512 numbers stays a light drawing. */

const LEVELS = 41;

export interface Band {
  /** Where the colour lies on the diverging scale, from 0 to 1; 0.5 is zero. */
  share: number;
  path: string;
}

/** The cells of a vector within a box at the origin, gathered by colour; `most` is the number at the scale's ends. */
export function bands(vector: ArrayLike<number>, width: number, height: number, most: number): Band[] {
  const cell = width / vector.length;
  const paths = new Map<number, string>();
  for (let index = 0; index < vector.length; index++) {
    const level = levelOf(vector[index], most);
    const path = `M${rounded(index * cell)} 0h${rounded(cell)}v${rounded(height)}h${rounded(-cell)}z`;
    paths.set(level, (paths.get(level) ?? "") + path);
  }
  return [...paths].map(([level, path]) => ({ share: level / (LEVELS - 1), path }));
}

function levelOf(value: number, most: number): number {
  const share = most > 0 ? Math.min(1, Math.max(-1, value / most)) : 0;
  return Math.round(((share + 1) / 2) * (LEVELS - 1));
}

function rounded(value: number): number {
  return Math.round(value * 100) / 100;
}

/** The largest size among numbers, to share one scale between strips. */
export function largest(...vectors: ArrayLike<number>[]): number {
  let most = 0;
  for (const vector of vectors) {
    for (let index = 0; index < vector.length; index++) most = Math.max(most, Math.abs(vector[index]));
  }
  return most;
}

/** One row of a matrix of vectors. */
export function rowOf(matrix: { columns: number; data: Float32Array }, row: number): Float32Array {
  return matrix.data.subarray(row * matrix.columns, (row + 1) * matrix.columns);
}
