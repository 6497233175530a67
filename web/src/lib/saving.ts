/** Pictures as files: SVG with its styles written into it, canvas as PNG. */

const KEPT = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "stroke-dasharray",
  "stroke-linecap",
  "stroke-linejoin",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "font-style",
  "text-anchor",
  "dominant-baseline",
  "letter-spacing",
  "visibility",
  "display",
  "paint-order",
  "mix-blend-mode",
  "image-rendering",
];

/** A file's name from words: lower case, hyphens, nothing else. */
export function fileName(words: string, kind: string): string {
  const plain = words
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, "-")
    .replace(/^-+|-+$/g, "");
  return `${plain || "picture"}.${kind}`;
}

export function download(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The drawing alone: styles computed by the page become its own, and the page's ground lies behind it. */
export function svgText(svg: SVGSVGElement): string {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  const made = [copy, ...copy.querySelectorAll<SVGElement>("*")];
  const shown = [svg, ...svg.querySelectorAll<SVGElement>("*")];
  shown.forEach((element, index) => settle(element, made[index]));
  // What a style sheet in the drawing said is in each element by now.
  for (const sheet of copy.querySelectorAll("style")) sheet.remove();
  const box = svg.getBoundingClientRect();
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(Math.round(box.width)));
  copy.setAttribute("height", String(Math.round(box.height)));
  copy.style.background = ground();
  return new XMLSerializer().serializeToString(copy);
}

export function saveSvg(svg: SVGSVGElement, words: string): void {
  download(new Blob([svgText(svg)], { type: "image/svg+xml" }), fileName(words, "svg"));
}

type Painter = () => Promise<HTMLCanvasElement>;
const painters = new WeakMap<HTMLCanvasElement, Painter>();

/** Names what is saved in place of a canvas: a finer picture, with what the page tells beside it. */
export function savedAs(canvas: HTMLCanvasElement, paint: Painter): void {
  painters.set(canvas, paint);
}

export async function savePng(canvas: HTMLCanvasElement, words: string): Promise<void> {
  const picture = await (painters.get(canvas)?.() ?? canvas);
  picture.toBlob((blob) => blob && download(blob, fileName(words, "png")), "image/png");
}

/** Saves the picture inside an element: the one marked `data-picture`, else its first drawing. */
export function saveInside(element: Element, words: string): void {
  const found = element.querySelector("[data-picture]") ?? element.querySelector("svg, canvas");
  if (found instanceof SVGSVGElement) saveSvg(found, words);
  else if (found instanceof HTMLCanvasElement) void savePng(found, words);
}

export function pictureKind(element: Element): "SVG" | "PNG" {
  const found = element.querySelector("[data-picture]") ?? element.querySelector("svg, canvas");
  return found instanceof HTMLCanvasElement ? "PNG" : "SVG";
}

function settle(shown: Element, copy: Element): void {
  const style = getComputedStyle(shown);
  const written = KEPT.map((name) => `${name}:${style.getPropertyValue(name)}`).join(";");
  for (const name of [...KEPT, "class"]) copy.removeAttribute(name);
  copy.setAttribute("style", written);
  if (style.transform !== "none" && !shown.hasAttribute("transform")) copy.setAttribute("transform", style.transform);
}

function ground(): string {
  return getComputedStyle(document.documentElement).getPropertyValue("--ground").trim() || "white";
}
