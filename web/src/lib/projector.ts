/** The projector: the page in large letters, as wide as a laptop's and enlarged to the screen it is shown on. */

/** What views are drawn for; a larger screen is an enlargement of it. */
const DRAWN_FOR = { width: 1280, height: 720 };
const [LEAST, MOST] = [1.1, 3];

/** Return how much the page is enlarged on a screen of this size, so that it fits. A phone's is not. */
export function enlargement(width: number, height: number): number {
  if (width <= 760) return 1;
  return Math.min(MOST, Math.max(LEAST, Math.min(width / DRAWN_FOR.width, height / DRAWN_FOR.height)));
}

/** Return how many of the window's pixels one of the element's is: what pointer events tell is in the window's. */
export function zoomOf(element: Element): number {
  return (element as Element & { currentCSSZoom?: number }).currentCSSZoom ?? 1;
}
