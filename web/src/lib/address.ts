/** The state of the page in its address: `#/head?source=…&site=…&head=3`, read and written in one place. */

import type { EditJson, HeadChoice, AskTrace } from "./source";
import { VIEWS, type ViewName } from "./views";

export type Theme = "light" | "dark";

/** What is chosen. */
export interface Cursor {
  view: ViewName;
  site: string | null;
  head: HeadChoice;
  query: number | null;
  key: number | null;
}

export interface State extends Cursor {
  request: AskTrace | null;
  /** Whether the model is looked at without the edits of the request. */
  unchanged: boolean;
  theme: Theme | null;
  /** The state of what it is compared with, written as an address of its own; null where nothing is said of it. */
  beside: string | null;
  /** What a view keeps for itself, under names of its own. */
  own: Record<string, string>;
}

const SHARED = new Set([
  "source",
  "target",
  "target_ids",
  "edits",
  "unchanged",
  "step",
  "site",
  "head",
  "query",
  "key",
  "theme",
  "beside",
]);

export function write(state: State): string {
  const values = new URLSearchParams();
  if (state.request !== null) writeRequest(values, state.request);
  if (state.unchanged) values.set("unchanged", "1");
  if (state.site !== null) values.set("site", state.site);
  values.set("head", String(state.head));
  if (state.query !== null) values.set("query", String(state.query));
  if (state.key !== null) values.set("key", String(state.key));
  if (state.theme !== null) values.set("theme", state.theme);
  if (state.beside !== null) values.set("beside", state.beside);
  for (const [name, value] of Object.entries(state.own)) if (!SHARED.has(name)) values.set(name, value);
  return `#/${state.view}?${values.toString()}`;
}

export function read(hash: string): State {
  const [path, asked = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const values = new URLSearchParams(asked);
  return {
    view: VIEWS.find((view) => view === path) ?? "model",
    request: readRequest(values),
    unchanged: values.get("unchanged") === "1",
    site: values.get("site"),
    head: values.get("head") === "mean" ? "mean" : (whole(values.get("head")) ?? 0),
    query: whole(values.get("query")),
    key: whole(values.get("key")),
    theme: readTheme(values.get("theme")),
    beside: values.get("beside"),
    own: Object.fromEntries([...values].filter(([name]) => !SHARED.has(name))),
  };
}

function writeRequest(values: URLSearchParams, request: AskTrace): void {
  values.set("source", request.source);
  if (Array.isArray(request.target)) values.set("target_ids", request.target.join(","));
  else if (request.target != null) values.set("target", request.target);
  if (request.edits?.length) values.set("edits", JSON.stringify(request.edits));
  if (request.step != null) values.set("step", String(request.step));
}

function readRequest(values: URLSearchParams): AskTrace | null {
  const source = values.get("source");
  if (source === null) return null;
  const ids = values.get("target_ids");
  const target = ids === null ? values.get("target") : ids.split(",").filter(Boolean).map(Number);
  return { source, target, edits: readEdits(values.get("edits")), step: whole(values.get("step")) };
}

function readEdits(text: string | null): EditJson[] {
  if (text === null) return [];
  try {
    const edits: unknown = JSON.parse(text);
    return Array.isArray(edits) ? (edits as EditJson[]) : [];
  } catch {
    return [];
  }
}

function readTheme(text: string | null): Theme | null {
  return text === "light" || text === "dark" ? text : null;
}

function whole(text: string | null): number | null {
  return text !== null && /^\d+$/.test(text) ? Number(text) : null;
}

/** What belongs to the page and not to one view of it: the chapter of Learn, what is solved, the projector, the language, and whether it is
 * shown at a glance within another page. */
const LASTING = new Set(["learn", "solved", "projector", "lang", "glance"]);

/** Return what is left of a view's own words when another view is opened. */
export function lasting(own: Record<string, string>): Record<string, string> {
  return Object.fromEntries(Object.entries(own).filter(([name]) => LASTING.has(name)));
}

/** Whether an address leaves it to the page what to show: it names no view, no text, no site and no chapter. */
export function saysNothing(hash: string): boolean {
  const { request, site, own } = read(hash);
  const chosen = Object.keys(own).length > Object.keys(lasting(own)).length || "learn" in own;
  return /^(#\/?)?(\?|$)/.test(hash) && request === null && site === null && !chosen;
}
