/** Plays the four steps: moves a time, holds at the end of each step, and tells when it rests. */

import { LAST, nextStop, previousStop } from "./timeline";

const SECONDS_A_STEP = 3;
const HOLD = 900;
const GLIDE = 1400;

export class Player {
  time = $state(1);
  playing = $state(false);
  private frame = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    start: number,
    private readonly onrest: (time: number) => void,
  ) {
    this.time = Math.min(LAST, Math.max(0, start));
  }

  /** Goes to a time at once, as a scrubber does. */
  scrub(time: number): void {
    this.halt();
    this.settle(time);
  }

  /** Goes where the address says. */
  follow(time: number): void {
    this.halt();
    this.time = Math.min(LAST, Math.max(0, time));
  }

  next(): void {
    this.glide(nextStop(this.time));
  }

  previous(): void {
    this.halt();
    this.settle(previousStop(this.time));
  }

  toggle(): void {
    if (this.playing) {
      this.halt();
      this.onrest(this.time);
    } else {
      this.play();
    }
  }

  halt(): void {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.timer);
    this.playing = false;
  }

  private play(): void {
    this.halt();
    if (this.time >= LAST) this.time = 0;
    this.playing = true;
    this.run(nextStop(this.time), (nextStop(this.time) - this.time) * SECONDS_A_STEP * 1000, () => this.hold());
  }

  private hold(): void {
    if (this.time >= LAST) {
      this.halt();
      this.onrest(this.time);
      return;
    }
    this.timer = setTimeout(() => {
      const stop = nextStop(this.time);
      this.run(stop, SECONDS_A_STEP * 1000, () => this.hold());
    }, HOLD);
  }

  private glide(stop: number): void {
    this.halt();
    this.run(stop, GLIDE * Math.abs(stop - this.time), () => this.onrest(stop));
    this.onrest(stop);
  }

  private settle(time: number): void {
    this.time = Math.min(LAST, Math.max(0, time));
    this.onrest(this.time);
  }

  /** Moves to a time in so many milliseconds; without motion, where the reader wants none, it is there at once. */
  private run(to: number, length: number, done: () => void): void {
    const from = this.time;
    if (still()) {
      this.time = to;
      if (this.playing) this.timer = setTimeout(done, length);
      else done();
      return;
    }
    const began = performance.now();
    const move = (now: number): void => {
      const share = length > 0 ? Math.min(1, Math.max(0, (now - began) / length)) : 1;
      this.time = share === 1 ? to : from + (to - from) * share;
      if (share < 1) this.frame = requestAnimationFrame(move);
      else done();
    };
    this.frame = requestAnimationFrame(move);
  }
}

function still(): boolean {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}
