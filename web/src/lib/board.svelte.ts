/** Where the parts of a drawing put the marks that are painted together, on one canvas over it. */

import { getContext, setContext } from "svelte";

import type { Mark } from "./marks";

export class MarkBoard {
  private readonly held = new Map<object, Mark>();
  private version = $state(0);
  private telling = false;

  /** What is put here, in the order in which the parts came. */
  get marks(): Mark[] {
    void this.version;
    return [...this.held.values()];
  }

  put(owner: object, mark: Mark): void {
    this.held.set(owner, mark);
    this.changed();
  }

  remove(owner: object): void {
    this.held.delete(owner);
    this.changed();
  }

  /** Once for all that change together. */
  private changed(): void {
    if (this.telling) return;
    this.telling = true;
    queueMicrotask(() => {
      this.telling = false;
      this.version++;
    });
  }
}

const NAME = "marks";

export function provideBoard(): MarkBoard {
  return setContext(NAME, new MarkBoard());
}

/** The board of the drawing that a part is in. */
export function useBoard(): MarkBoard {
  return getContext<MarkBoard>(NAME);
}
