/** The projector: the page in large letters, as wide as a laptop's and enlarged to the screen it is shown on. */

/** The width that views are drawn for; a wider screen is an enlargement of it. */
const DRAWN_FOR = 1280;
const [LEAST, MOST] = [1.25, 3];

/** Return how much the page is enlarged on a screen of this width. A phone's is not. */
export function enlargement(width: number): number {
  return width <= 760 ? 1 : Math.min(MOST, Math.max(LEAST, width / DRAWN_FOR));
}

/** Return how many of the window's pixels one of the element's is: what pointer events tell is in the window's. */
export function zoomOf(element: Element): number {
  return (element as Element & { currentCSSZoom?: number }).currentCSSZoom ?? 1;
}
