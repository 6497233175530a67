/** What the page shows, in one place: views read it from their context and change it by `select` and `ask`. */

import { getContext, setContext } from "svelte";

import { type Cursor, lasting, read, saysNothing, type State, type Theme, write } from "./address";
import { requestWith, sameEdits } from "./edits";
import { begun, did, type History, redone, undone } from "./history";
import { type Answer, type Resource, resource } from "./resource.svelte";
import { isScrubbing } from "./scrubbing";
import type {
  EditJson,
  HeadChoice,
  Meta,
  RunFacts,
  SideMeta,
  SideName,
  SiteMeta,
  Source,
  AskTrace,
  ViewName,
} from "./source";
import { t } from "../text";
import { COMPARING } from "./words";

/** What a view may change: only the named parts change. */
export type Selection = Partial<Cursor>;

/** How a trace is asked for. */
interface Asking {
  /** Whether it becomes a step of the browser's history, where it is another text. */
  push: boolean;
  /** Whether the edits are left out of what is shown. */
  unchanged: boolean;
  /** The source it is asked of, where the request may be aborted. */
  source?: Source;
  /** True where the address is written only when nothing has changed for a while: browsers take few changes a second. */
  late?: boolean;
}

/** Where an explorer's state is kept: in the page's address, or, of the second of two, within that of the first. */
export interface AddressBar {
  read(): string;
  /** `moved`: it is a step of the browser's history. */
  write(address: string, moved: boolean): void;
  /** Calls back when the reader goes back or forth. */
  follow(changed: () => void): void;
}

/** The address that was last written or followed. Where another stands, somebody has gone there and its event is still to
 * come: an answer that comes first must not write the address of before over it. */
let settled = "";
const PAGE_BAR: AddressBar = {
  read: () => location.hash,
  write(address, moved) {
    if (location.hash !== settled) return;
    if (moved) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
    settled = location.hash;
  },
  follow(changed) {
    settled = location.hash;
    addEventListener("hashchange", () => {
      settled = location.hash;
      changed();
    });
  },
};

/** The address says that nothing is to be compared, also where the server has a second run. */
export const CLOSED = "off";
const REST = 250;
/** Milliseconds after which a film goes on though not all of a step has come. */
const PATIENCE = 1000;

export class Explorer {
  readonly source: Source;
  run = $state.raw<RunFacts | null>(null);
  meta = $state.raw<Meta | null>(null);
  /** The text and the edits that are made, also while the model is shown without them. */
  request = $state.raw<AskTrace | null>(null);
  /** True while the model is shown without the edits of the request. */
  unchanged = $state(false);
  /** The edits that were made one after another, for undo and redo. */
  history = $state.raw<History>(begun());
  view = $state<ViewName>("model");
  siteName = $state<string | null>(null);
  head = $state<HeadChoice>(0);
  query = $state<number | null>(null);
  key = $state<number | null>(null);
  /** The theme chosen by the reader; null follows the machine. */
  chosen = $state<Theme | null>(null);
  error = $state<string | null>(null);
  /** True while a trace is being made. */
  busy = $state(false);
  own = $state.raw<Record<string, string>>({});
  /** The state of what it is compared with, as an address; null or CLOSED where nothing is. */
  beside = $state<string | null>(null);
  /** Whether a second one can be opened beside it. */
  comparable = false;
  private machineDark = $state(false);
  private readonly bar: AddressBar;
  private asked = 0;
  /** What is asked for, until it is there. */
  private pending: { request: AskTrace; unchanged: boolean } | null = null;
  private stepping = new AbortController();
  private resting: ReturnType<typeof setTimeout> | undefined;
  /** When the address was last written. */
  private published = -Infinity;
  private awaited: History | null = null;
  private readonly resources = new Set<Resource<unknown>>();

  readonly edits: EditJson[] = $derived(this.request?.edits ?? []);
  /** What `meta` is the trace of: the request, without its edits while the unchanged model is shown. */
  readonly shownRequest: AskTrace | null = $derived(
    this.request !== null && this.unchanged ? requestWith(this.request, []) : this.request,
  );
  readonly site: SiteMeta | null = $derived.by(() => {
    const sites = this.meta?.sites ?? [];
    return sites.find((site) => site.name === this.siteName) ?? favourite(sites);
  });
  /** The head as a number: the first where the mean is chosen. */
  readonly headNumber: number = $derived(this.head === "mean" ? 0 : this.head);
  readonly theme: Theme = $derived(this.chosen ?? (this.machineDark ? "dark" : "light"));
  readonly queryTokens: string[] = $derived(this.site === null ? [] : this.tokens(this.site.query_side));
  readonly keyTokens: string[] = $derived(this.site === null ? [] : this.tokens(this.site.key_side));

  /** The steps whose weights can be looked at: the film's frames, the kept checkpoints, and the run's own. */
  readonly steps: number[] = $derived(stepsOf(this.run));
  readonly step: number | null = $derived(this.request?.step ?? this.run?.step ?? null);
  /** True where another step than the run's own is shown with the output that it writes itself. */
  readonly ownOutput: boolean = $derived(
    this.run?.target === "writes" && this.step !== this.run.step && this.request?.target == null,
  );

  constructor(source: Source, bar: AddressBar = PAGE_BAR) {
    this.source = source;
    this.bar = bar;
  }

  side(name: SideName): SideMeta | null {
    return this.meta?.sides[name] ?? null;
  }

  tokens(name: SideName): string[] {
    return this.side(name)?.tokens ?? [];
  }

  siteNamed(name: string): SiteMeta | null {
    return this.meta?.sites.find((site) => site.name === name) ?? null;
  }

  /** Reads the address, then the run, then traces what the address or the run's first example says. */
  async start(): Promise<void> {
    const hash = this.bar.read();
    const state = read(hash);
    this.apply(state);
    this.request = state.request;
    this.followMachine();
    this.bar.follow(() => this.followAddress());
    try {
      this.run = await this.source.ask("run", {});
    } catch (error) {
      return this.fail(error);
    }
    // Learn goes to the place of its chapter, where nobody has chosen one.
    if (state.site === null && !("learn" in state.own)) this.openOn(this.run.opening, saysNothing(hash));
    const first = { source: this.run.examples[0]?.source ?? "", target: this.run.opening?.target };
    await this.load(state.request ?? first, { push: false, unchanged: state.unchanged });
    if (this.meta === null && state.request !== null) await this.askInstead(first);
    this.tellAbsent(state.view);
  }

  /** Where the address asked for what cannot be, there is something to look at all the same, and the reason. */
  private async askInstead(request: AskTrace): Promise<void> {
    const reason = this.error;
    await this.ask(request);
    this.error = reason;
  }

  /** Traces a text with its edits; the model stays shown without them if it is, and they are the same. */
  ask(request: AskTrace): Promise<void> {
    return this.load(request, { push: false, unchanged: this.keepsUnchanged(request) });
  }

  /** Traces a text that somebody typed or chose: another text is a step in the browser's history. */
  async submit(source: string, target: AskTrace["target"]): Promise<void> {
    const kept = target === null && Array.isArray(this.request?.target) && this.step !== this.run?.step;
    const request = { ...this.request, source, target };
    await this.load(request, { push: true, unchanged: this.keepsUnchanged(request) });
    if (kept && this.step !== null) await this.goToStep(this.step, true);
  }

  /** Shows the same text with the weights of another step. `keepOutput`: what the model writes at its own step stays the
   * target, as each step would write another text and no two could be compared; it is kept unless the reader has chosen
   * that each step writes its own. What was asked for last is shown. */
  async goToStep(step: number, keepOutput = !this.ownOutput): Promise<void> {
    const [request, run] = [this.request, this.run];
    if (request === null || run === null || !this.steps.includes(step)) return;
    this.stepping.abort();
    const { signal } = (this.stepping = new AbortController());
    const source = this.source.during(signal);
    const wanted = { ...request, step: step === run.step ? null : step };
    const asking = { push: false, unchanged: this.keepsUnchanged(wanted), source, late: true };
    if (!keepOutput && Array.isArray(wanted.target)) wanted.target = null;
    if (run.target !== "writes" || !keepOutput || wanted.target != null) return this.load(wanted, asking);
    const mine = ++this.asked;
    const own = await source.ask("trace", { edits: [], ...request, target: null, step: null }).catch(() => null);
    if (mine !== this.asked) return;
    await this.load({ ...wanted, target: own?.sides.decoder?.ids.slice(1) ?? null }, asking);
  }

  /** Asks again which steps there are, while the run trains; the weights that are loaded stay those that are shown. */
  async followTraining(): Promise<void> {
    const known = this.run;
    if (known === null || !known.training) return;
    const found = await this.source.ask("run", {}).catch(() => null);
    if (found === null || this.run !== known) return;
    const { film, steps, training } = found;
    const same = JSON.stringify([film, steps, training]) === JSON.stringify([known.film, known.steps, known.training]);
    if (!same) this.run = { ...known, film, steps, training };
  }

  /** Shows the model without the edits, or with them again. */
  async showUnchanged(unchanged: boolean): Promise<void> {
    if (this.request !== null && unchanged !== this.unchanged)
      await this.load(this.request, { push: false, unchanged });
  }

  /** Makes these the edits, as one step that can be undone. */
  async edit(edits: EditJson[]): Promise<void> {
    if (!sameEdits(edits, this.edits)) await this.go(did(this.history, edits));
  }

  undo(): Promise<void> {
    return this.go(undone(this.history));
  }

  redo(): Promise<void> {
    return this.go(redone(this.history));
  }

  private async go(next: History): Promise<void> {
    if (this.request === null || next === this.history) return;
    this.awaited = next;
    await this.ask(requestWith(this.request, next.now));
    this.awaited = null;
  }

  private keepsUnchanged(request: AskTrace): boolean {
    return this.unchanged && sameEdits(request.edits ?? [], this.edits);
  }

  /** What was asked later wins; the page keeps what it shows until the answer is there. */
  private async load(request: AskTrace, { source = this.source, ...asking }: Asking): Promise<void> {
    const mine = ++this.asked;
    const whole = { edits: [], step: null, target: null, ...request };
    const plain = asking.unchanged && whole.edits.length > 0 && !COMPARING.includes(this.view);
    this.busy = true;
    this.error = null;
    this.pending = { request: whole, unchanged: plain };
    try {
      const meta = await source.ask("trace", plain ? requestWith(whole, []) : whole);
      const made = plain ? whole : requestWith(whole, meta.edits);
      if (mine === this.asked) this.accept(made, meta, { ...asking, unchanged: plain });
    } catch (error) {
      if (mine === this.asked) this.fail(error);
    } finally {
      if (mine === this.asked) [this.busy, this.pending] = [false, null];
    }
  }

  /** Goes somewhere: a view, a site, a head, a token; a change of view is a step back in the browser's history. */
  select(selection: Selection): void {
    const moved = selection.view !== undefined && selection.view !== this.view;
    if (moved) this.own = lasting(this.own);
    if (selection.view !== undefined) this.view = selection.view;
    if (selection.site !== undefined) this.siteName = selection.site;
    if (selection.head !== undefined) this.head = selection.head;
    if (selection.query !== undefined) this.query = selection.query;
    if (selection.key !== undefined) this.key = selection.key;
    this.settle();
    this.publish(moved);
    if (COMPARING.includes(this.view)) void this.showUnchanged(false);
  }

  /** A view's own words in the address: `keep("beam", 4)`, read back with `kept("beam")`; null forgets. */
  keep(name: string, value: string | number | null): void {
    const rest = Object.fromEntries(Object.entries(this.own).filter(([known]) => known !== name));
    this.own = value === null ? rest : { ...rest, [name]: String(value) };
    // Browsers refuse an address that changes more than a hundred times in half a minute.
    if (isScrubbing() || performance.now() - this.published < REST) this.publishLate();
    else this.publish();
  }

  kept(name: string): string | null {
    return this.own[name] ?? null;
  }

  /** Return a whole number that a view has kept, brought between `least` and `most`; `usual` where it has none. */
  keptWhole(name: string, most: number, usual = 0, least = 0): number {
    const value = Number(this.own[name] ?? NaN);
    return Number.isInteger(value) ? Math.max(least, Math.min(most, value)) : usual;
  }

  /** Keeps the state of what this is compared with; `moved`: opening and closing it are steps of the history. */
  setBeside(address: string | null, moved: boolean): void {
    this.beside = address;
    this.publish(moved);
  }

  choose(theme: Theme | null): void {
    this.chosen = theme;
    this.publish();
  }

  fail(error: unknown): void {
    this.error = error instanceof Error ? error.message : String(error);
  }

  /** A resource asked of the page's source; its errors stand at the top of the page unless the view shows them itself. */
  resource<Value>(
    ask: (source: Source) => Answer<Value>,
    { reset, showsError = false }: { reset?: boolean; showsError?: boolean } = {},
  ): Resource<Value> {
    const onerror = showsError ? undefined : (error: unknown): void => this.fail(error);
    const made = resource((signal) => ask(this.source.during(signal)), { reset, onerror });
    $effect(() => {
      this.resources.add(made);
      return () => this.resources.delete(made);
    });
    return made;
  }

  /** Resolves when what is asked for is there, or after PATIENCE; at the next frame where nothing is under way. */
  async arrived(): Promise<void> {
    const began = performance.now();
    do await new Promise(requestAnimationFrame);
    while ([...this.resources].some((one) => one.loading) && performance.now() - began < PATIENCE);
  }

  /** The address of the page as it stands, for a link that restores it. */
  get address(): string {
    return write(this.state());
  }

  private accept(request: AskTrace, meta: Meta, { push, unchanged, late = false }: Asking): void {
    const edits = request.edits ?? [];
    const other = this.meta !== null && !sameText(this.request, request);
    this.request = request;
    this.unchanged = unchanged;
    this.meta = meta;
    if (!sameEdits(edits, this.history.now))
      this.history =
        this.awaited !== null && sameEdits(edits, this.awaited.now) ? this.awaited : did(this.history, edits);
    this.settle();
    if (late) this.publishLate();
    else this.publish(push && other);
  }

  /** Nothing chosen lies outside of the trace that is shown. */
  private settle(): void {
    const site = this.site;
    if (site === null) return;
    if (this.head !== "mean" && this.head >= site.n_heads) this.head = 0;
    if (this.query !== null && this.query >= site.n_query) this.query = null;
    if (this.key !== null && this.key >= site.n_key) this.key = null;
  }

  private state(): State {
    return {
      view: this.view,
      request: this.request,
      unchanged: this.unchanged,
      site: this.siteName,
      head: this.head,
      query: this.query,
      key: this.key,
      theme: this.chosen,
      beside: this.beside,
      own: this.own,
    };
  }

  private apply(state: State): void {
    this.view = this.source.views.includes(state.view) ? state.view : "model";
    this.siteName = state.site;
    this.head = state.head;
    this.query = state.query;
    this.key = state.key;
    this.chosen = state.theme ?? this.chosen;
    this.beside = state.beside;
    this.own = state.own;
  }

  /** Chooses the head that the run opens on; `shown`: goes to its view as well. */
  private openOn(opening: RunFacts["opening"], shown: boolean): void {
    if (opening === undefined) return;
    [this.siteName, this.head] = [opening.site, opening.head];
    if (shown) this.view = "head";
  }

  private publishLate(): void {
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.publish(), REST);
  }

  /** Writes the address at once: before it is read, as a link that is copied, or by the page that is loaded again. */
  publish(moved = false): void {
    clearTimeout(this.resting);
    const address = write(this.state());
    if (address === this.bar.read()) return;
    this.published = performance.now();
    this.bar.write(address, moved);
  }

  private followAddress(): void {
    const state = read(this.bar.read());
    this.apply(state);
    // What is on its way is what the address is held to: an answer that is not wanted any longer must not come after it.
    const now = this.pending ?? this;
    const wanted = state.request ?? now.request;
    const same = wanted !== null && state.unchanged === now.unchanged && sameRequest(wanted, now.request);
    if (wanted !== null && !same) void this.load(wanted, { push: false, unchanged: state.unchanged });
    else if (this.pending === null) this.stay();
    this.tellAbsent(state.view);
  }

  /** Shows another place of the trace that is there, as an answer would: within it, and with all of it in the address. */
  private stay(): void {
    this.error = null;
    this.settle();
    this.publish();
  }

  /** An address from elsewhere may name a view that a page of one file does not have. */
  private tellAbsent(view: ViewName): void {
    if (!this.source.views.includes(view)) this.error ??= t.live.noView(t.views[view].title);
  }

  private followMachine(): void {
    const machine = matchMedia("(prefers-color-scheme: dark)");
    this.machineDark = machine.matches;
    machine.addEventListener("change", () => (this.machineDark = machine.matches));
  }
}

function stepsOf(run: RunFacts | null): number[] {
  if (run === null) return [];
  return [...new Set([...(run.film ?? []), ...(run.steps ?? []), run.step])].sort((one, other) => one - other);
}

/** Whether two requests ask for the same, in whatever order their parts stand. */
function sameRequest(one: AskTrace, other: AskTrace | null): boolean {
  return (
    other !== null &&
    sameText(one, other) &&
    (one.step ?? null) === (other.step ?? null) &&
    sameEdits(one.edits ?? [], other.edits ?? [])
  );
}

function sameText(one: AskTrace | null, other: AskTrace): boolean {
  return one?.source === other.source && JSON.stringify(one.target ?? null) === JSON.stringify(other.target ?? null);
}

/** The site to open on: a cross-attention where there is one, as its pattern tells most; else the last layer's. */
function favourite(sites: SiteMeta[]): SiteMeta | null {
  return sites.findLast((site) => site.slot === "cross") ?? sites.at(-1) ?? null;
}

const NAME = "explorer";

export function provide(explorer: Explorer): Explorer {
  return setContext(NAME, explorer);
}

/** The explorer of the page: `const explorer = useExplorer()` at the top of a view. */
export function useExplorer(): Explorer {
  return getContext<Explorer>(NAME);
}
