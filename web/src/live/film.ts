/** Earlier steps of the training in a page: their weights on a scale that all share, each step as its change from the one
 * before. clearhead/serve/packing.py writes them.
 */

import { inflate } from "../lib/inflate";
import type { FilmPlan } from "./plan";
import type { Tensor } from "./tensor";

export class Film {
  /** The levels of each step that was asked for, and of those before it. */
  private readonly known: Promise<Int16Array>[] = [];
  private scales: Promise<Float32Array> | null = null;

  constructor(
    private readonly plan: FilmPlan,
    /** Of the scales, then of each step. */
    private readonly lines: string[],
  ) {}

  find(step: number): FilmPlan["steps"][number] | undefined {
    return this.plan.steps.find((one) => one.step === step);
  }

  async weights(step: number): Promise<Map<string, Tensor>> {
    this.scales ??= inflate(this.lines[0]).then(({ buffer }) => new Float32Array(buffer));
    const [scales, levels] = [
      await this.scales,
      await this.levels(this.plan.steps.findIndex((one) => one.step === step)),
    ];
    const found = new Map<string, Tensor>();
    let [place, row] = [0, 0];
    for (const [name, shape] of Object.entries(this.plan.tensors)) {
      const data = new Float32Array(sizeOf(shape));
      const rows = shape.length > 1 ? shape[0] : 1;
      const columns = data.length / rows;
      for (let unit = 0; unit < data.length; unit++)
        data[unit] = levels[place + unit] * scales[row + Math.floor(unit / columns)];
      place += data.length;
      row += rows;
      found.set(name, { shape, data });
    }
    return found;
  }

  private levels(at: number): Promise<Int16Array> {
    return (this.known[at] ??= this.unpack(at));
  }

  private async unpack(at: number): Promise<Int16Array> {
    const bytes = await inflate(this.lines[at + 1]);
    const count = bytes.length / 2;
    const levels = at === 0 ? new Int16Array(count) : (await this.levels(at - 1)).slice();
    for (let unit = 0; unit < count; unit++) {
      const folded = bytes[unit] | (bytes[count + unit] << 8);
      levels[unit] += (folded >>> 1) ^ -(folded & 1);
    }
    return levels;
  }
}

function sizeOf(shape: number[]): number {
  return shape.reduce((product, one) => product * one, 1);
}
