/** The tables of a live page with a vector for every token, and the nearest of one, as
 * clearhead/serve/questions/neighbours.py has them. */

import { type Neighbour, type Neighbours, SourceError } from "../lib/source";
import type { Model } from "./model";
import type { Task } from "./task";
import { largest, type Tensor } from "./tensor";
import type { Tokenizer } from "./tokenizer";

const OUTPUT = "output";

/** The tables with a vector for every token, each once: one that is shared has the name of the first. */
function tablesOf(model: Model): Map<string, string> {
  const found = new Map<string, string>();
  const add = (name: string, held: string): void => {
    if (![...found.values()].includes(held)) found.set(name, held);
  };
  for (const side of model.sides) add(`${side}.embedding`, model.side(side).embedding.table);
  const { output } = model.side(model.sides.at(-1)!);
  if (output?.kind === "vocabulary") add(OUTPUT, output.table);
  return found;
}

function tokenizerOf(task: Task, table: string): Tokenizer {
  return table === "encoder.embedding" ? task.reads : task.writes;
}

export function neighboursOf(model: Model, task: Task, name: string, token: number, most: number): Neighbours {
  const tables = tablesOf(model);
  const table = tensorOf(model, tables, name);
  if (token >= table.shape[0]) throw new SourceError(`${name}: there is no token ${token}`);
  const tokenizer = tokenizerOf(task, name);
  const same = [...tables.keys()].filter(
    (one) => tokenizerOf(task, one) === tokenizer && tensorOf(model, tables, one).shape[0] === table.shape[0],
  );
  return {
    token,
    text: tokenizer.names([token])[0],
    tables: [name, ...same.filter((one) => one !== name)].map((one) =>
      nearest(tensorOf(model, tables, one), token, one),
    ),
  };

  function nearest({ data, shape }: Tensor, token: number, table: string): Neighbours["tables"][number] {
    const [count, width] = shape;
    const row = (id: number): Float32Array => data.subarray(id * width, (id + 1) * width);
    const lengths = Float64Array.from({ length: count }, (_, id) => Math.sqrt(dot(row(id), row(id))));
    const cosines = Float64Array.from(lengths, (long, id) =>
      id === token ? -2 : dot(row(id), row(token)) / (Math.max(long, 1e-12) * Math.max(lengths[token], 1e-12)),
    );
    const ids = largest(cosines, Math.min(most, count - 1));
    const texts = tokenizer.names(ids);
    const near = ids.map((id, place): Neighbour => ({
      ...{ id, text: texts[place], cosine: cosines[id] },
      vector: Array.from(row(id)),
    }));
    return { table, length: lengths[token], near };
  }
}

function tensorOf(model: Model, tables: Map<string, string>, name: string): Tensor {
  const held = tables.get(name);
  if (held === undefined)
    throw new SourceError(`table: expected one of ${[...tables.keys()].join(", ")}; came ${name}`);
  return model.tensor(held);
}

function dot(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let sum = 0;
  for (let k = 0; k < a.length; k++) sum += a[k] * b[k];
  return sum;
}
