/** Answers that a view asks for: what it shows is never the answer to an older question. */

import { untrack } from "svelte";

/** One answer, or one after another of which each has more than the last; null where there is nothing to ask. */
export type Answer<Value> = Promise<Value> | AsyncIterable<Value> | null;

export interface Options {
  /** Forgets the former answer as soon as something else is asked; without it, it stays until the next one is there. */
  reset?: boolean;
  /** Called with every error but those of what was aborted. */
  onerror?: (error: unknown) => void;
}

export interface Resource<Value> {
  /** The last answer; null before the first. */
  readonly value: Value | null;
  /** Why there is no answer, in words; null from the next answer on. */
  readonly error: string | null;
  readonly loading: boolean;
  /** Asks the same again. */
  reload(): void;
}

/** Asks again whenever something changes that `ask` reads before its first `await`. Its signal is aborted as soon as
 * something else is asked.
 *
 * Call it while a component is set up, or in an effect's root: what is under way is aborted with it. */
export function resource<Value>(
  ask: (signal: AbortSignal) => Answer<Value>,
  { reset = false, onerror }: Options = {},
): Resource<Value> {
  let value = $state.raw<Value | null>(null);
  let error = $state<string | null>(null);
  let loading = $state(false);
  let reloads = $state(0);

  $effect(() => {
    void reloads;
    const stop = new AbortController();
    const answer = ask(stop.signal);
    untrack(() => {
      if (reset) value = null;
      if (reset || answer === null) error = null;
      loading = answer !== null;
      if (answer !== null) void follow(answer, stop.signal);
    });
    return () => stop.abort();
  });

  async function follow(answer: NonNullable<Answer<Value>>, signal: AbortSignal): Promise<void> {
    try {
      for await (const found of Symbol.asyncIterator in answer ? answer : once(answer)) {
        if (signal.aborted) return;
        [value, error] = [found, null];
      }
    } catch (reason) {
      if (signal.aborted) return;
      error = reason instanceof Error ? reason.message : String(reason);
      onerror?.(reason);
    }
    if (!signal.aborted) loading = false;
  }

  return {
    get value() {
      return value;
    },
    get error() {
      return error;
    },
    get loading() {
      return loading;
    },
    reload() {
      reloads++;
    },
  };
}

/** Asks for each name after the other, and gives what has come so far. */
export async function* inTurn<Name, Found>(
  names: readonly Name[],
  ask: (name: Name) => Promise<Found>,
): AsyncGenerator<Map<Name, Found>> {
  let found = new Map<Name, Found>();
  for (const name of names) {
    found = new Map(found).set(name, await ask(name));
    yield found;
  }
}

/** Asks for all names at once, and gives what has come so far. */
export async function* together<Name, Found>(
  names: readonly Name[],
  ask: (name: Name) => Promise<Found>,
): AsyncGenerator<Map<Name, Found>> {
  let found = new Map<Name, Found>();
  const waiting = new Map(names.map((name) => [name, ask(name).then((answer) => ({ name, answer }))]));
  while (waiting.size > 0) {
    const { name, answer } = await Promise.race(waiting.values());
    waiting.delete(name);
    found = new Map(found).set(name, answer);
    yield found;
  }
}

async function* once<Value>(answer: Promise<Value>): AsyncGenerator<Value> {
  yield await answer;
}
