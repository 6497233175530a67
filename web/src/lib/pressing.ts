/** Keys in a drawing, which has no buttons of its own: what presses one, and which way an arrow points. */

/** Whether a key presses a button. */
export function presses({ key }: Pick<KeyboardEvent, "key">): boolean {
  return key === "Enter" || key === " ";
}

/** Return the way in which an arrow key points, across and down; no way for any other key. */
export function arrowOf({ key }: Pick<KeyboardEvent, "key">): [across: number, down: number] {
  return ARROWS[key] ?? [0, 0];
}

const ARROWS: Record<string, [number, number]> = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
};
