/** A head that is being designed: what the address says of it, and all that follows from it. */

import type { Resource } from "../../lib/resource.svelte";
import type { Matrix } from "../../lib/source";
import type { Explorer } from "../../lib/state.svelte";
import {
  type Design,
  maskedOf,
  outputsOf,
  pairOf,
  type Preset,
  preset,
  PRESETS,
  type Scene,
  scoresOf,
  wantedOf,
} from "./design";
import {
  casesOf,
  curveOf,
  hardest,
  marginOf,
  neededFor,
  onWanted,
  type Weighing,
  weightsOf,
  winners,
} from "./sharpness";
import { packed, typed, unpacked } from "./written";
import { t } from "../../text";

/** More tokens than this are not drawn, nor sent. */
export const MOST = 64;
/** The words of the address that belong to a design. */
export const OWN = ["design", "preset", "from", "to", "mine", "scale", "weighting", "epsilon", "goal"];
const MINE = "the cute blue creature sees the blue creature";

export class Designing {
  private readonly mask: Resource<{ of: string; matrix: Matrix }>;

  /** Whether words of the reader's own see no later ones, as a goal may have it. */
  causal = $state(false);
  /** Words of the reader's own in place of the model's text. */
  readonly mine = $derived.by(() => this.explorer.kept("mine"));
  private readonly whole = $derived.by(() => {
    const { queryTokens, keyTokens } = this.explorer;
    return this.mine === null
      ? { queries: queryTokens, keys: keyTokens }
      : { queries: split(this.mine), keys: split(this.mine) };
  });
  readonly scene = $derived.by<Scene>(() => ({
    queries: this.whole.queries.slice(0, MOST),
    keys: this.whole.keys.slice(0, MOST),
    allowed: this.allowedBy(),
  }));
  /** How many tokens the text has, drawn or not. */
  readonly long = $derived.by(() => Math.max(this.whole.queries.length, this.whole.keys.length));
  private readonly chosen = $derived.by(() => presetOf(this.explorer.kept("preset")));
  readonly pair = $derived.by(() => ({
    from: knownIn(this.scene.queries, this.explorer.kept("from")) ?? pairOf(this.scene).from,
    to: knownIn(this.scene.keys, this.explorer.kept("to")) ?? pairOf(this.scene).to,
  }));
  private readonly own = $derived.by(() => unpacked(this.explorer.kept("design")));
  readonly design = $derived.by(() => this.own ?? preset(this.chosen, this.scene, this.pair));
  /** The ready head that is shown, as long as none of its numbers is changed. */
  readonly pressed = $derived.by(() => (this.own !== null ? null : this.chosen));

  readonly weighing = $derived.by<Weighing>(() =>
    this.explorer.kept("weighting") === "argmax" ? "argmax" : "softmax",
  );
  readonly scale = $derived.by(() => Math.min(1000, Math.max(0, typed(this.explorer.kept("scale") ?? "") ?? 10)));
  readonly epsilon = $derived.by(() => epsilonOf(this.explorer.kept("epsilon")) ?? 0.01);
  readonly scores = $derived.by(() => scoresOf(this.design, this.scene));
  readonly masked = $derived.by(() => maskedOf(this.scores, this.scene));
  readonly wanted = $derived.by(() => wantedOf(this.design, this.scene));
  readonly weights = $derived.by(() => weightsOf(this.masked, this.weighing, this.scale));
  readonly outputs = $derived.by(() => outputsOf(this.weights, this.design, this.scene));
  /** The queries that want a key which is in the text. */
  readonly cases = $derived.by(() => casesOf(this.masked, this.wanted));
  readonly margin = $derived.by(() => marginOf(this.cases));
  /** The scale that leaves no more than epsilon elsewhere. */
  readonly needed = $derived.by(() => neededFor(this.cases, this.epsilon));
  readonly worst = $derived.by(() => hardest(this.cases, this.epsilon));
  /** The least weight on what is wanted, over all queries. */
  readonly left = $derived.by(() => Math.min(1, ...onWanted(this.weights, this.wanted)));
  /** Where the slider and the curve end. */
  readonly most = $derived.by(() => {
    const enough = Number.isFinite(this.needed) ? this.needed * 1.4 : 0;
    return 10 * Math.max(2, Math.ceil(Math.max(enough, this.scale) / 10));
  });
  readonly curve = $derived.by(() => curveOf(this.masked, this.wanted, this.most));
  readonly wins = $derived.by(() =>
    this.scene.queries.map((_, query) => (this.cases.find((one) => one.query === query)?.margin ?? 1) > 0),
  );
  /** How many of the cases score what they want highest. */
  readonly right = $derived.by(() => winners(this.cases));
  /** Why it cannot be sent into the model, in words; empty where it can. */
  readonly hindrance = $derived.by(() => {
    if (this.mine !== null) return t.design.ownHindrance;
    if (this.long <= MOST) return "";
    return t.design.longHindrance(this.long, MOST);
  });

  /** To be made while a component is set up. */
  constructor(private readonly explorer: Explorer) {
    this.mask = explorer.resource((source) => {
      const { meta, site, headNumber: head } = explorer;
      if (meta === null || site === null) return null;
      const of = `${meta.id} ${site.name} ${head}`;
      const where = { site: site.name, head, step: "allowed", level: 0, row: 0, column: 0 } as const;
      return source.ask("tile", { trace: meta.id, ...where }).then((matrix) => ({ of, matrix }));
    });
  }

  set(next: Design): void {
    this.explorer.keep("design", packed(next));
  }

  take(kind: Preset, words: { from: string; to: string } = this.pair): void {
    this.explorer.keep("design", null);
    this.explorer.keep("from", kind === "looks" ? words.from : null);
    this.explorer.keep("to", kind === "looks" ? words.to : null);
    this.explorer.keep("preset", kind);
  }

  /** Words of the reader's own; null is the model's text. */
  write(text: string | null): void {
    this.explorer.keep("design", null);
    this.explorer.keep("mine", text === null ? null : text.trim() || MINE);
  }

  setScale(scale: string | number): void {
    this.explorer.keep("scale", scale);
  }

  /** Whether the text is an epsilon; where it is, it is taken. */
  setEpsilon(text: string): boolean {
    const value = epsilonOf(text);
    if (value !== null) this.explorer.keep("epsilon", value);
    return value !== null;
  }

  setWeighing(weighing: Weighing): void {
    this.explorer.keep("weighting", weighing === "argmax" ? "argmax" : null);
  }

  /** Who may look at whom: as the trace has it; until it is there, as the site’s mask says. */
  private allowedBy(): Scene["allowed"] {
    if (this.mine !== null) return this.causal ? (query, key) => key <= query : () => true;
    const { meta, site, headNumber: head } = this.explorer;
    const found = this.mask.value;
    const matrix = found?.of === `${meta?.id} ${site?.name} ${head}` ? found.matrix : null;
    if (matrix !== null) return (query, key) => matrix.data[query * matrix.columns + key] > 0;
    return site?.arithmetic.causal ? (query, key) => key <= query : () => true;
  }
}

function split(text: string): string[] {
  return text.trim().split(/\s+/).filter(Boolean);
}

function knownIn(tokens: string[], word: string | null): string | null {
  return word !== null && tokens.includes(word) ? word : null;
}

/** Every X looks at Y, unless another ready head was chosen. */
function presetOf(name: string | null): Preset {
  return name !== null && name in PRESETS ? (name as Preset) : "looks";
}

function epsilonOf(text: string | null): number | null {
  const value = typed(text ?? "");
  return value !== null && value > 0 && value < 1 ? value : null;
}
