/** Parts of a page that take turns while a slider moves.
 *
 * All of them together take longer to draw than a frame has. In turns, each frame draws one of them anew, beside what
 * takes no turns. What is out of sight waits until the slider rests; then those that wait follow, again one a frame. */

import { untrack } from "svelte";

import { followScrubbing, isScrubbing } from "./scrubbing";

/** In the order in which they are next. */
const line = new Set<Turn>();
let frame = 0;
/** Whether what takes no turns and what does have not fitted into one frame since the slider began to move. */
let crowded = false;
/** When the last frame was, and when somebody last gave a frame of its own to a turn. */
let [last, given] = [0, -Infinity];
/** Milliseconds from one frame to the next after which it is late, and for which a given frame counts. */
const [LATE, GIVEN] = [24, 200];

export class Turn {
  /** Whether it follows at once whatever changes. */
  private free = $state(!isScrubbing());
  private taken = $state(0);
  /** Whether it is in sight, as far as that is known. */
  private seen = true;

  /** Call it while a component is set up. `patient`: it gets no turn before the slider rests. */
  constructor(private readonly patient = false) {
    $effect(() => {
      line.add(this);
      if (!untrack(() => this.free)) begin();
      return () => line.delete(this);
    });
  }

  /** In a `$derived`: what `now` says, or said when it was this one's turn. */
  of<Value>(now: () => Value): Value {
    if (this.free) return now();
    void this.taken;
    return untrack(now);
  }

  /** Attached to an element: it is out of sight while the element's first child is. */
  readonly watch = (element: Element): (() => void) => {
    const sight = new IntersectionObserver((entries) => (this.seen = entries.at(-1)!.isIntersecting));
    const observe = (): void => {
      sight.disconnect();
      this.seen = true;
      if (element.firstElementChild !== null) sight.observe(element.firstElementChild);
    };
    const children = new MutationObserver(observe);
    children.observe(element, { childList: true });
    observe();
    return () => {
      children.disconnect();
      sight.disconnect();
    };
  };

  get waits(): boolean {
    return untrack(() => !this.free);
  }

  get mayTake(): boolean {
    return this.seen && !this.patient;
  }

  hold(): void {
    this.free = false;
  }

  take(): void {
    this.taken++;
  }

  release(): void {
    this.free = true;
  }
}

function begin(): void {
  cancelAnimationFrame(frame);
  if (line.size === 0) return end();
  frame = requestAnimationFrame(next);
}

/** All follow again: whoever waits for the page to be at rest looks at this. */
function end(): void {
  delete document.documentElement.dataset.turns;
}

/** Gives the frame that has begun to whoever is next, and resolves in the one after it; at once where all fit into one.
 * For what draws something with every frame. */
export async function giveFrame(): Promise<void> {
  if (!crowded || !isScrubbing() || !takeTurn()) return;
  given = performance.now();
  await new Promise(requestAnimationFrame);
}

/** Returns whether somebody was next. */
function takeTurn(): boolean {
  const one = [...line].find((turn) => turn.mayTake);
  if (one === undefined) return false;
  line.delete(one);
  line.add(one);
  one.take();
  return true;
}

/** In every frame while a slider moves, and then until all follow again. */
function next(now: number): void {
  crowded ||= last > 0 && now - last > LATE;
  last = now;
  if (isScrubbing()) {
    if (!crowded || now - given > GIVEN) takeTurn();
    return begin();
  }
  const waiting = [...line].filter((turn) => turn.waits);
  (waiting.find((turn) => turn.mayTake) ?? waiting[0])?.release();
  if (waiting.length > 1) begin();
  else end();
}

followScrubbing(() => {
  if (isScrubbing() && line.size > 0) document.documentElement.dataset.turns = "";
  if (isScrubbing()) for (const turn of line) turn.hold();
  [crowded, last] = [false, 0];
  begin();
});
