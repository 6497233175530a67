/** A designed head, tried on every sentence: how much of its weight is where it should be, and the query that does worst. */

import { dot, softmax } from "../../lib/arithmetic";
import type { DesignKey, Goal } from "../../lib/source";

interface Graded {
  sentence: string[];
  place: number;
  share: number;
  output: number[] | null;
  wanted: number[] | null;
}

/** Return the mean share of the weight on what is asked, and the worst query. */
export function gradeHead(
  goal: Goal,
  key: DesignKey,
  vectors: Record<string, number[][]>,
): { credit: number; worst: Graded } {
  const rows = goal.sentences.flatMap((words, sentence) => gradeSentence(goal, key, vectors, words, sentence));
  const credit = rows.reduce((sum, row) => sum + row.share, 0) / rows.length;
  return { credit, worst: rows.reduce((worst, row) => (rounded(row) < rounded(worst) ? row : worst)) };
}

function gradeSentence(
  goal: Goal,
  { targets, results }: DesignKey,
  vectors: Record<string, number[][]>,
  words: string[],
  sentence: number,
): Graded[] {
  const cases = words.map((word, place) => goal.cases.findIndex(([one, at]) => one === word && at === place));
  const [queries, keys] = [vectors.query, vectors.key].map((all) => cases.map((one) => all[one]));
  return words.map((_, place) => {
    const scale = Math.sqrt(queries[place].length);
    const seen = goal.causal ? keys.slice(0, place + 1) : keys;
    const { weight: weights } = softmax(seen.map((one) => dot(queries[place], one) / scale));
    const wanted = targets[sentence][place];
    const share = wanted === null ? 1 : wanted.reduce((sum, at) => sum + (weights[at] ?? 0), 0);
    if (results === null) return { sentence: words, place, share, output: null, wanted: null };
    const values = cases.map((one) => vectors.value[one]);
    const output = values[0].map((_, at) =>
      dot(
        weights,
        values.slice(0, seen.length).map((value) => value[at]),
      ),
    );
    const asked = results[sentence][place];
    const off = output.length === asked.length ? Math.max(...asked.map((one, at) => Math.abs(one - output[at]))) : 1;
    const reached = Math.min(share, Math.max(0, 1 - off));
    return { sentence: words, place, share: reached, output, wanted: asked };
  });
}

/** What differs by rounding alone is equal, and the first is the worst. */
function rounded({ share }: Graded): number {
  return Math.round(share * 1e9);
}
