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

const SVG = "http://www.w3.org/2000/svg";
const over = new WeakMap<SVGSVGElement, () => string>();

/** Names what lies over a drawing, on a canvas: it is saved with it, as elements of the drawing. */
export function drawnOver(svg: SVGSVGElement, elements: () => string): void {
  over.set(svg, elements);
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
  copy.setAttribute("xmlns", SVG);
  copy.setAttribute("width", String(Math.round(box.width)));
  copy.setAttribute("height", String(Math.round(box.height)));
  copy.style.background = ground();
  const more = over.get(svg);
  if (more !== undefined) {
    const drawn = new DOMParser().parseFromString(`<g xmlns="${SVG}" data-marks="">${more()}</g>`, "image/svg+xml");
    copy.append(drawn.documentElement);
  }
  return new XMLSerializer().serializeToString(copy);
}

type Painter = () => Promise<string>;
const painters = new WeakMap<HTMLCanvasElement, Painter>();

/** Names what is saved in place of a canvas: a drawing (SVG text) with what the page tells beside it. */
export function savedAs(canvas: HTMLCanvasElement, paint: Painter): void {
  painters.set(canvas, paint);
}

/** How many times as fine as on the page a drawing is painted. */
const FINENESS = 2;
/** The most pixels along a side of a canvas: browsers draw nothing on larger ones. */
const MOST_PIXELS = 12_000;

/** Paints a drawing. It must need nothing from elsewhere: an image loads nothing. */
export async function paintSvg(text: string): Promise<HTMLCanvasElement> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const fineness = Math.min(FINENESS, MOST_PIXELS / Math.max(image.naturalWidth, image.naturalHeight));
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(image.naturalWidth * fineness);
  canvas.height = Math.round(image.naturalHeight * fineness);
  canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas;
}

export async function savePng(canvas: HTMLCanvasElement, words: string): Promise<void> {
  const paint = painters.get(canvas);
  const picture = paint ? await paintSvg(await paint()) : canvas;
  picture.toBlob((blob) => blob && download(blob, fileName(words, "png")), "image/png");
}

export function saveText(text: string, type: string, words: string, kind: string): void {
  download(new Blob([text], { type }), fileName(words, kind));
}

/** Puts a text where it can be pasted from; false where the browser does not let a page do so. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** Saves the picture inside an element: the one marked `data-picture`, else its first drawing. */
export function saveInside(element: Element, words: string): void {
  const found = element.querySelector("[data-picture]") ?? element.querySelector("svg, canvas");
  if (found instanceof SVGSVGElement) saveText(svgText(found), "image/svg+xml", words, "svg");
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
