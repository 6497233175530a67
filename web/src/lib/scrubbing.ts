/** While a slider is being moved, everything changes many times a second: then nothing glides from the one to the next.
 * A transition that begins anew with every frame costs a frame, and shows nothing. */

/** Milliseconds after the last move. */
const REST = 150;
let moving = false;
const followers = new Set<() => void>();
let timer: ReturnType<typeof setTimeout> | undefined;

export function isScrubbing(): boolean {
  return moving;
}

/** Calls back when a slider begins to move, and when it rests. */
export function followScrubbing(changed: () => void): void {
  followers.add(changed);
}

/** Hears the input events of the page. */
export function noteScrubbing(event: Event): void {
  if ((event.target as Partial<HTMLInputElement> | null)?.type !== "range") return;
  if (!moving) {
    document.documentElement.dataset.scrubbing = "";
    moving = true;
    for (const tell of followers) tell();
  }
  clearTimeout(timer);
  timer = setTimeout(() => {
    moving = false;
    delete document.documentElement.dataset.scrubbing;
    for (const tell of followers) tell();
  }, REST);
}

/** How to scroll to what has changed. */
export function gliding(): ScrollBehavior {
  return moving || matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
}
