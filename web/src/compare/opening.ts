/** What is opened beside the run: another step of it, another text, or the second run that the server has. */

import { read, write } from "../lib/address";
import type { Example, AskTrace } from "../lib/source";
import { CLOSED, type AddressBar, type Explorer } from "../lib/state.svelte";

/** Whether two are shown now. */
export function isComparing(explorer: Pick<Explorer, "beside">): boolean {
  return explorer.beside !== null && explorer.beside !== CLOSED;
}

/** Whether a second one can be opened: not within the second itself, nor in a page that holds one text. */
export function canCompare(explorer: Pick<Explorer, "beside" | "comparable" | "meta">): boolean {
  return explorer.comparable && explorer.meta !== null && !isComparing(explorer);
}

type Opened = Pick<Explorer, "address" | "request" | "run" | "meta" | "steps" | "step">;

/** The address of the second: what is seen now, with one thing changed, so that there is a difference to see. */
export function openedBeside(explorer: Opened): string {
  const state = read(explorer.address);
  const request = explorer.request === null ? null : otherRequest(explorer, explorer.request);
  return write({ ...state, beside: null, request });
}

function otherRequest(explorer: Opened, request: AskTrace): AskTrace {
  const { run, steps, step, meta } = explorer;
  if (run?.beside !== undefined) return { ...request, target: textOnly(request), edits: [], step: null };
  if (steps.length > 1) {
    const ids = run?.target === "writes" ? meta?.sides.decoder?.ids.slice(1) : undefined;
    const other = step === steps[0] ? steps[steps.length - 1] : steps[0];
    return { ...request, target: request.target ?? ids ?? null, step: other === run?.step ? null : other };
  }
  const text = run?.examples.find((one: Example) => one.source !== request.source)?.source;
  return text === undefined ? request : { ...request, source: text, target: null, edits: [] };
}

/** A target in words; ids of tokens mean others to another tokeniser. */
function textOnly(request: AskTrace): string | null {
  return typeof request.target === "string" ? request.target : null;
}

/** The address bar of the second: its state is a part of the first one's address. A change of it is no step of the
 * history by itself, as the first one moves along. */
export function barWithin(first: Explorer, signal: AbortSignal): AddressBar {
  return {
    read: () => first.beside ?? "",
    write: (address) => signal.aborted || first.setBeside(address, false),
    follow: (changed) => addEventListener("hashchange", () => isComparing(first) && changed(), { signal }),
  };
}
