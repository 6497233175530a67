/** Asks what an answer is worth, and remembers it: which exercises were solved is kept in this browser alone. */

import type { Answers, Asks } from "../../lib/source";
import type { Resource } from "../../lib/resource.svelte";
import type { Explorer } from "../../lib/state.svelte";

type Answer = Asks<"grade">;
type Graded = Answers<"grade">;

const KEY = "clearhead-exercises";

function held(): string[] {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]") as unknown;
    return Array.isArray(found) ? found.filter((name) => typeof name === "string") : [];
  } catch {
    return []; // a browser may refuse to keep anything
  }
}

class Verdicts {
  private solved = $state.raw(held());
  /** By exercise, the answer that was graded last, and what was said of it. */
  private last = $state.raw<Record<string, { of: string; graded: Graded }>>({});

  has(name: string): boolean {
    return this.solved.includes(name);
  }

  of(name: string): { of: string; graded: Graded } | null {
    return this.last[name] ?? null;
  }

  tell(of: string, graded: Graded): void {
    if (this.last[graded.name]?.of !== of) this.last = { ...this.last, [graded.name]: { of, graded } };
    if (graded.state !== "right" || this.has(graded.name)) return;
    this.solved = [...this.solved, graded.name];
    try {
      localStorage.setItem(KEY, JSON.stringify(this.solved));
    } catch {
      // As above: it counts until the page is closed.
    }
  }
}

export const verdicts = new Verdicts();

/** The verdict on an answer, which is asked for with every change. Make it while a component is set up. */
export class Grading {
  private readonly answer: Resource<{ of: string; graded: Graded }>;
  /** What was said last of this exercise; of this very answer, if it is `current`. */
  readonly last: Graded | null = $derived.by(() => {
    const [answer, found] = [this.answered(), this.answer.value];
    return answer !== null && found?.graded.name === answer.name ? found.graded : null;
  });
  readonly current: Graded | null = $derived.by(() =>
    this.answer.value?.of === JSON.stringify(this.answered()) ? this.last : null,
  );

  constructor(
    explorer: Explorer,
    /** What is answered; null while it is no answer yet. */
    private readonly answered: () => Answer | null,
  ) {
    this.answer = explorer.resource(
      (source) => {
        const answer = answered();
        if (answer === null) return null;
        const of = JSON.stringify(answer);
        return source.ask("grade", answer).then((graded) => ({ of, graded }));
      },
      { showsError: true },
    );
    $effect(() => {
      if (this.current !== null) verdicts.tell(JSON.stringify(answered()), this.current);
    });
  }

  get error(): string | null {
    return this.answer.error;
  }

  get loading(): boolean {
    return this.answer.loading;
  }
}
