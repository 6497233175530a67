/** The projector: the page in large letters, as wide as a laptop's and enlarged to the screen it is shown on. */

/** What views are drawn for; a larger screen is an enlargement of it. */
const DRAWN_FOR = { width: 1280, height: 720 };
const [LEAST, MOST] = [1.1, 3];

/** Return how much the page is enlarged on a screen of this size, so that it fits. A phone's is not. */
export function enlargement(width: number, height: number): number {
  if (width <= 760) return 1;
  return Math.min(MOST, Math.max(LEAST, Math.min(width / DRAWN_FOR.width, height / DRAWN_FOR.height)));
}

/** Smaller than this nobody at the back can read it. */
const SMALLEST = 0.6;

/** Return the enlargement at which the first row of pictures of a view ends above the window's foot; never a larger one. */
export function fitted(main: Element, zoom: number, height: number, scrolled = 0): number {
  const figures = [...main.querySelectorAll("figure")].map((one) => one.getBoundingClientRect());
  const top = Math.min(...figures.map((box) => box.top));
  const foot = Math.max(...figures.filter((box) => box.top < top + 8).map((box) => box.bottom)) + scrolled;
  return Number.isFinite(foot) && foot > height ? Math.max(SMALLEST, (zoom * (height - 4)) / foot) : zoom;
}

/** Return how many of the window's pixels one of the element's is: what pointer events tell is in the window's. */
export function zoomOf(element: Element): number {
  return (element as Element & { currentCSSZoom?: number }).currentCSSZoom ?? 1;
}
