/** What canvases are painted with. To ask for a computed style makes the browser settle all styles of the page, in the
 * middle of a frame: the colours are read once for each theme, and the zoom is told by the page that sets it. */

/** How much larger the page is shown on a projector. */
let zoom = $state(1);

export function pageZoom(): number {
  return zoom;
}

export function setPageZoom(wanted: number): void {
  zoom = wanted;
}

const read = new Map<string, string>();

/** Return a custom property of the page, as "--ink", in the theme that the page has. */
export function paintOf(name: string): string {
  const root = document.documentElement;
  const known = `${root.dataset.theme ?? ""} ${name}`;
  let value = read.get(known);
  if (value === undefined) {
    value = getComputedStyle(root).getPropertyValue(name).trim();
    if (value !== "") read.set(known, value); // a style sheet that is still to come is asked again
  }
  return value;
}
