/** Answers that a view asks for: what it shows is never the answer to an older question. */

import { untrack } from "svelte";

import { spoken } from "../text/server";

/** One answer, or one after another of which each has more than the last; null where there is nothing to ask. */
export type Answer<Value> = Promise<Value> | AsyncIterable<Value> | null;

export interface Options {
  /** Forgets the former answer if the next one is not there at once; without it, it stays until the next one is there. */
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
  /** What is cached answers before this: then nothing is taken off the page only to be drawn again. */
  let forgetting: ReturnType<typeof setTimeout> | undefined;

  $effect(() => {
    void reloads;
    const stop = new AbortController();
    const answer = ask(stop.signal);
    untrack(() => {
      if (reset && answer !== null) forgetting = setTimeout(forget);
      else if (reset) value = null;
      if (reset || answer === null) error = null;
      loading = answer !== null;
      if (answer !== null) void follow(answer, stop.signal);
    });
    return () => {
      clearTimeout(forgetting);
      stop.abort();
    };
  });

  function forget(): void {
    value = null;
  }

  async function follow(answer: NonNullable<Answer<Value>>, signal: AbortSignal): Promise<void> {
    try {
      for await (const found of Symbol.asyncIterator in answer ? answer : once(answer)) {
        if (signal.aborted) return;
        clearTimeout(forgetting);
        [value, error] = [found, null];
      }
    } catch (reason) {
      if (signal.aborted) return;
      clearTimeout(forgetting);
      if (reset) value = null;
      error = spoken(reason instanceof Error ? reason.message : String(reason));
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

/** Asks for each name after the other, and gives what has come so far; what is cached is given together. */
export async function* inTurn<Name, Found>(
  names: readonly Name[],
  ask: (name: Name) => Promise<Found>,
): AsyncGenerator<Map<Name, Found>> {
  const found = new Map<Name, Found>();
  let given = 0;
  for (const name of names) {
    const answer = ask(name).then((one) => void found.set(name, one));
    answer.catch(() => {}); // it is waited for below
    for (let turn = 0; turn < TURNS && !found.has(name); turn++) await null;
    if (!found.has(name) && found.size > given) {
      yield new Map(found);
      given = found.size;
    }
    await answer;
  }
  if (found.size > given) yield new Map(found);
}

/** Asks for all names, some at once, and gives what has come so far. */
export async function* together<Name, Found>(
  names: readonly Name[],
  ask: (name: Name) => Promise<Found>,
): AsyncGenerator<Map<Name, Found>> {
  const found = new Map<Name, Found>();
  const waiting = new Map<Name, Promise<void>>();
  const left = [...names];
  let given = 0;
  while (given < names.length) {
    for (const name of left.splice(0, AT_ONCE - waiting.size)) {
      const answer = ask(name).then((one) => void found.set(name, one));
      answer.catch(() => {}); // it is waited for below
      waiting.set(name, answer);
    }
    // What was asked for before answers at once: all of it is given together, so that it is drawn once.
    for (let turn = 0; turn < TURNS && [...waiting.keys()].some((name) => !found.has(name)); turn++) await null;
    if (found.size === given) await Promise.race(waiting.values());
    for (const name of found.keys()) waiting.delete(name);
    if (waiting.size === 0 && left.length > 0) continue;
    if (found.size > given) yield new Map(found);
    given = found.size;
  }
}

/** A browser has six requests to a server under way: the page's own, the view that is opened next, must not wait for
 * every thumbnail of a deep model. */
const AT_ONCE = 3;

/** More than the promises that a cached answer passes through. */
const TURNS = 8;

async function* once<Value>(answer: Promise<Value>): AsyncGenerator<Value> {
  yield await answer;
}
