/** Follows the log of a run, also while it is written. */

import type { CurveLine, Source } from "../../lib/source";
import { askedAfter, merged } from "./curves";

/** What is known of a run's training so far. */
export interface Log {
  lines: CurveLine[];
  training: boolean;
  /** The steps whose checkpoints are kept. */
  checkpoints: number[];
  /** The steps of the film, which has weights alone. */
  film: number[];
}

/** Reads what is new in the log, and all of it where it has been cut back. The run is asked for its checkpoints again
 * where there may be others. */
export async function follow(source: Pick<Source, "ask">, known: Log, first: boolean): Promise<Log> {
  const after = askedAfter(known.lines);
  let found = await source.ask("curves", { after });
  const cut = after >= 0 && found.lines.length === 0;
  if (cut) found = await source.ask("curves", { after: -1 });
  const lines = merged(cut ? [] : known.lines, found.lines);
  const ended = known.training && !found.training;
  const others = !first && (ended || evaluations(lines) !== evaluations(known.lines));
  const run = others ? await source.ask("run", {}) : null;
  const [checkpoints, film] = run === null ? [known.checkpoints, known.film] : [run.steps, run.film ?? []];
  return { lines, training: found.training, checkpoints, film };
}

function evaluations(lines: readonly CurveLine[]): number {
  return lines.filter((line) => line.kind === "evaluation").length;
}
