/** Runs a program made by menus, as clearhead/rasp/interpreter.py defines it. The formulas are those of
 * clearhead/exercises/menus.py, and a test of it runs both. */

import { BETWEEN } from "../../views/exercises/lines";
import { equal, float, type Given, less, numberOf, plus, remainder, truth, twice, Unfit, type Value } from "./values";

const PREDICATES: Record<string, (key: Given, query: Given) => boolean> = {
  True: () => true,
  "key == query": equal,
  "key < query": less,
  "key <= query": (key, query) => less(key, query) || equal(key, query),
  "key > query": (key, query) => less(query, key),
  "key == query - 1": (key, query) => equal(key, numberOf(query) - 1),
  "key == query + 1": (key, query) => equal(key, numberOf(query) + 1),
  "key == 0": (key) => equal(key, 0),
  "key < 0": (key) => less(key, 0),
  key: truth,
};
const NUMERIC = "float(value)";
const FUNCTIONS: Record<string, (value: Given) => Given> = {
  "value + 1": (value) => numberOf(value) + 1,
  "value - 1": (value) => numberOf(value) - 1,
  "value * 2": twice,
  "value // 2": (value) => Math.floor(numberOf(value) / 2),
  "value % 2": (value) => remainder(value, 2),
  "value == 0": (value) => equal(value, 0),
  "value > 0": (value) => less(0, value),
  "value > 0.5": (value) => less(0.5, value),
  "not value": (value) => !truth(value),
  [NUMERIC]: float,
  '"many" if value > 1 else "few"': (value) => (less(1, value) ? "many" : "few"),
};
const JOINING: Record<string, (a: Given, b: Given) => Given> = {
  "a + b": plus,
  "a - b": (a, b) => numberOf(a) - numberOf(b),
  "a % max(b, 1)": (a, b) => remainder(a, Math.max(numberOf(b), 1)),
  "a == b": equal,
  "a != b": (a, b) => !equal(a, b),
  "a and b": (a, b) => (truth(a) ? b : a),
  "(a, b)": (a, b) => [a, b],
  '"x" if a == b else "-"': (a, b) => (equal(a, b) ? "x" : "-"),
  'a if b > 1 else "-"': (a, b) => (less(1, b) ? a : "-"),
};

interface Line {
  operation: string;
  chosen: string[];
}
interface Term {
  keys: readonly Value[];
  queries: readonly Value[];
  holds: (key: Given, query: Given) => boolean;
  number: number;
}
/** What a line computes for a text: a value for each place, or the keys that each query chooses. */
export type Computed = { row: Value[] } | { selected: number[][] } | { failed: number | null };

/** Why a line has no answer: its number, whose values do not fit; null where chosen keys differ. */
class Failure extends Error {
  constructor(readonly line: number | null) {
    super();
  }
}

export class Program {
  private readonly lines: Line[];
  /** Whether the values of a line are numbers, of which keys have a mean. */
  private readonly numeric: boolean[] = [];

  constructor(lines: readonly string[]) {
    this.lines = lines.map((line) => {
      const [operation, ...chosen] = line.split(BETWEEN);
      return { operation, chosen };
    });
    for (const { operation, chosen } of this.lines)
      this.numeric.push(
        operation === "map" ? chosen[0] === NUMERIC : operation === "aggregate" && this.isNumeric(chosen[1]),
      );
  }

  /** The answer to a text: what the last line computes. */
  answer(text: string): Computed {
    return new Run(this.lines, this.numeric, text).computed(this.lines.length - 1);
  }

  /** What each line computes for a text. */
  computed(text: string): Computed[] {
    const run = new Run(this.lines, this.numeric, text);
    return this.lines.map((_, at) => run.computed(at));
  }

  private isNumeric(name: string): boolean {
    return name.startsWith("line ") && this.numeric[Number(name.slice(5)) - 1];
  }
}

class Run {
  private readonly known = new Map<number, Value[]>();
  private readonly tokens: string[];

  constructor(
    private readonly lines: readonly Line[],
    private readonly numeric: readonly boolean[],
    text: string,
  ) {
    this.tokens = [...text];
  }

  computed(at: number): Computed {
    try {
      const { operation } = this.lines[at];
      return operation === "select" || operation === "both"
        ? { selected: this.selected(this.terms(at)) }
        : { row: this.row(at) };
    } catch (error) {
      if (error instanceof Failure) return { failed: error.line };
      throw error;
    }
  }

  private named(name: string): readonly Value[] {
    if (name === "tokens") return this.tokens;
    return name === "indices" ? this.tokens.map((_, at) => at) : this.row(place(name));
  }

  private row(at: number): Value[] {
    let found = this.known.get(at);
    if (found === undefined) this.known.set(at, (found = this.compute(at)));
    return found;
  }

  private compute(at: number): Value[] {
    const { operation, chosen } = this.lines[at];
    const nothing = this.numeric[at] ? 0 : null;
    if (operation === "width") return this.selected(this.terms(place(chosen[0]))).map((keys) => keys.length);
    if (operation === "aggregate") {
      const values = this.named(chosen[1]);
      return this.selected(this.terms(place(chosen[0]))).map((keys) =>
        keys.length === 0
          ? nothing
          : gather(
              keys.map((key) => values[key]),
              this.numeric[at],
            ),
      );
    }
    if (operation === "map") {
      const made = FUNCTIONS[chosen[0]] ?? isLetter(chosen[0]);
      return this.named(chosen[1]).map((value) => (value === null ? nothing : checked(at + 1, () => made(value))));
    }
    const [joined, first, second] = [JOINING[chosen[0]], this.named(chosen[1]), this.named(chosen[2])];
    return first.map((a, where) => {
      const b = second[where];
      return a === null || b === null ? null : checked(at + 1, () => joined(a, b));
    });
  }

  private terms(at: number): Term[] {
    const { operation, chosen } = this.lines[at];
    if (operation === "both") return chosen.flatMap((name) => this.terms(place(name)));
    const [keys, queries] = [this.named(chosen[0]), this.named(chosen[1])];
    return [{ keys, queries, holds: PREDICATES[chosen[2]] ?? isLetter(chosen[2]), number: at + 1 }];
  }

  /** The keys that each query chooses; where a value is missing it chooses nothing, and is not chosen. */
  private selected(terms: readonly Term[]): number[][] {
    const holds = (key: number, query: number): boolean =>
      terms.every(({ keys, queries, holds, number }) => {
        const [one, other] = [keys[key], queries[query]];
        return one !== null && other !== null && checked(number, () => holds(one, other));
      });
    const places = this.tokens.map((_, at) => at);
    return places.map((query) => places.filter((key) => holds(key, query)));
  }
}

function place(name: string): number {
  return Number(name.slice(5)) - 1;
}

/** The formulas of letters: `key == "a"`, `value == "a"`. */
function isLetter(formula: string): (value: Given) => boolean {
  const letter = formula.slice(formula.indexOf('"') + 1, -1);
  return (value) => value === letter;
}

function checked<Result>(line: number, compute: () => Result): Result {
  try {
    return compute();
  } catch (error) {
    throw error instanceof Unfit ? new Failure(line) : error;
  }
}

/** The mean of numbers, or what the chosen keys share. */
function gather(values: readonly Value[], numeric: boolean): Value {
  if (numeric) return values.reduce((sum: number, value) => sum + Number(value), 0) / values.length;
  if (values.some((value) => !equal(value, values[0]))) throw new Failure(null);
  return values[0];
}
