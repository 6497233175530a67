/** A word of the address that moves fast, as under a slider: the page follows at once, the address a few times a second. */

import { onDestroy } from "svelte";

import type { Explorer } from "../../lib/state.svelte";

/** Browsers refuse an address that changes more than a hundred times in half a minute. */
const PAUSE = 400;

export class Kept {
  private moving = $state<string | null>(null);
  private last = -Infinity;
  private timer: ReturnType<typeof setTimeout> | undefined;
  /** What was last written from here, to tell a change that came by the address. */
  written: string | null = null;

  constructor(
    private readonly explorer: Pick<Explorer, "keep" | "kept">,
    private readonly name: string,
  ) {
    onDestroy(() => clearTimeout(this.timer));
  }

  get text(): string | null {
    return this.moving ?? this.explorer.kept(this.name);
  }

  set(value: string | number): void {
    clearTimeout(this.timer);
    const text = String(value);
    if (text === this.explorer.kept(this.name)) {
      this.moving = null; // it is there already: written again later, it would undo a step back in between
      this.written = text;
      return;
    }
    const left = this.last + PAUSE - performance.now();
    if (left <= 0) {
      this.write(text);
      return;
    }
    this.moving = text;
    this.timer = setTimeout(() => this.write(text), left);
  }

  private write(text: string): void {
    this.last = performance.now();
    this.written = text;
    this.moving = null;
    this.explorer.keep(this.name, text);
  }
}
