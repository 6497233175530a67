/** What the page shows, in one place: views read it from their context and change it by `select` and `ask`. */

import { getContext, setContext } from "svelte";

import { read, type State, type Theme, write } from "./address";
import type { HeadChoice, Meta, Run, SideMeta, SideName, SiteMeta, Source, TraceRequest, ViewName } from "./source";

/** What a view may change: only the named parts change. */
export interface Selection {
  view?: ViewName;
  site?: string;
  head?: HeadChoice;
  query?: number | null;
  key?: number | null;
}

export class Explorer {
  readonly source: Source;
  run = $state.raw<Run | null>(null);
  meta = $state.raw<Meta | null>(null);
  request = $state.raw<TraceRequest | null>(null);
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
  private machineDark = $state(false);
  private asked = 0;

  readonly site: SiteMeta | null = $derived.by(() => {
    const sites = this.meta?.sites ?? [];
    return sites.find((site) => site.name === this.siteName) ?? favourite(sites);
  });
  /** The head as a number: the first where the mean is chosen. */
  readonly headNumber: number = $derived(this.head === "mean" ? 0 : this.head);
  readonly theme: Theme = $derived(this.chosen ?? (this.machineDark ? "dark" : "light"));
  readonly queryTokens: string[] = $derived(this.site === null ? [] : this.tokens(this.site.query_side));
  readonly keyTokens: string[] = $derived(this.site === null ? [] : this.tokens(this.site.key_side));

  constructor(source: Source) {
    this.source = source;
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
    this.apply(read(location.hash));
    this.openOn(this.source.shown);
    this.followMachine();
    addEventListener("hashchange", () => this.followAddress());
    await this.guarded(async () => {
      this.run = await this.source.run();
      const first = { source: this.run.examples[0]?.source ?? "" };
      await this.ask(this.request ?? first);
      if (this.meta === null && this.request !== null) await this.askInstead(first);
    });
  }

  /** Where the address asked for what cannot be, there is something to look at all the same, and the reason. */
  private async askInstead(request: TraceRequest): Promise<void> {
    const reason = this.error;
    await this.ask(request);
    this.error = reason;
  }

  /** Traces a text. What was asked later wins; the page keeps what it shows until the answer is there. */
  async ask(request: TraceRequest): Promise<void> {
    const mine = ++this.asked;
    const whole = { edits: [], step: null, target: null, ...request };
    this.busy = true;
    this.error = null;
    try {
      const meta = await this.source.trace(whole);
      if (mine === this.asked) this.accept(whole, meta);
    } catch (error) {
      if (mine === this.asked) this.fail(error);
    } finally {
      if (mine === this.asked) this.busy = false;
    }
  }

  /** Goes somewhere: a view, a site, a head, a token; a change of view is a step back in the browser's history. */
  select(selection: Selection): void {
    const moved = selection.view !== undefined && selection.view !== this.view;
    if (moved) this.own = {};
    if (selection.view !== undefined) this.view = selection.view;
    if (selection.site !== undefined) this.siteName = selection.site;
    if (selection.head !== undefined) this.head = selection.head;
    if (selection.query !== undefined) this.query = selection.query;
    if (selection.key !== undefined) this.key = selection.key;
    this.settle();
    this.publish(moved);
  }

  /** A view's own words in the address: `keep("beam", 4)`, read back with `kept("beam")`; null forgets. */
  keep(name: string, value: string | number | null): void {
    const rest = Object.fromEntries(Object.entries(this.own).filter(([known]) => known !== name));
    this.own = value === null ? rest : { ...rest, [name]: String(value) };
    this.publish(false);
  }

  kept(name: string): string | null {
    return this.own[name] ?? null;
  }

  choose(theme: Theme | null): void {
    this.chosen = theme;
    this.publish(false);
  }

  fail(error: unknown): void {
    this.error = error instanceof Error ? error.message : String(error);
  }

  /** Runs what may fail and shows the failure in the page, in words. */
  async guarded<Answer>(work: () => Promise<Answer>): Promise<Answer | undefined> {
    try {
      return await work();
    } catch (error) {
      this.fail(error);
      return undefined;
    }
  }

  /** The address of the page as it stands, for a link that restores it. */
  get address(): string {
    return write(this.state());
  }

  private accept(request: TraceRequest, meta: Meta): void {
    this.request = request;
    this.meta = meta;
    this.settle();
    this.publish(false);
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
      site: this.siteName,
      head: this.head,
      query: this.query,
      key: this.key,
      theme: this.chosen,
      own: this.own,
    };
  }

  private apply(state: State): void {
    this.view = this.source.views.includes(state.view) ? state.view : "model";
    this.request = state.request;
    this.siteName = state.site;
    this.head = state.head;
    this.query = state.query;
    this.key = state.key;
    this.chosen = state.theme ?? this.chosen;
    this.own = state.own;
  }

  private openOn(shown: Source["shown"]): void {
    if (shown === undefined || this.siteName !== null) return;
    [this.siteName, this.head] = [shown.site, shown.head];
  }

  private publish(moved: boolean): void {
    const address = write(this.state());
    if (address === location.hash) return;
    if (moved) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
  }

  private followAddress(): void {
    const before = JSON.stringify(this.request);
    const shown = this.request;
    this.apply(read(location.hash));
    const wanted = this.request ?? shown;
    this.request = shown;
    if (wanted !== null && JSON.stringify(wanted) !== before) void this.ask(wanted);
  }

  private followMachine(): void {
    const machine = matchMedia("(prefers-color-scheme: dark)");
    this.machineDark = machine.matches;
    machine.addEventListener("change", () => (this.machineDark = machine.matches));
  }
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
