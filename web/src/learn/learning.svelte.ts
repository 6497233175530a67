/** Where the reader stands on the path: the chapter and what is solved are in the address, the rest follows from them. */

import { untrack } from "svelte";

import { lasting, read, write } from "../lib/address";
import { requestWith } from "../lib/edits";
import type { Resource } from "../lib/resource.svelte";
import type { Meta, ViewName } from "../lib/source";
import type { Explorer } from "../lib/state.svelte";
import { Turn } from "../lib/turns.svelte";
import { t } from "../text";
import { pathOf } from "./chapters";
import type { Chapter, Lesson, Now, Place, Prepared, Verdict } from "./lesson";
import { CHAPTERS } from "./links";
import { type LessonPlan, lessonPlan } from "./plan";
import { PupilRecord } from "./record.svelte";

export class Learning {
  private readonly explorer: Explorer;
  private readonly views: () => readonly ViewName[];
  /** The chapter that was asked for and is not gone to yet: its numbers are on their way. */
  private wanted = $state<string | null>(null);
  /** Whether the address is written and the page has not followed it yet. */
  private going = $state(false);
  /** What was chosen when the chapter was come to: until something else is, there is nothing to judge. */
  private arrival = $state.raw<{ of: Prepared; chosen: string } | null>(null);

  /** Whether the text of the chapter is on its way, and for which chapter it was last asked for. */
  private texting = $state(false);
  private texted: string | null = null;
  readonly record: PupilRecord;
  plan = $state.raw<LessonPlan | null>(null);

  /** The chapter in which something was pressed. */
  private touched = $state.raw<Prepared | null>(null);

  private readonly unchanged: Resource<Meta>;
  readonly lesson: Lesson | null = $derived.by(() => {
    const { run, source } = this.explorer;
    const meta = this.unchanged.value;
    return run === null || meta === null ? null : { run, meta, source, views: this.views(), text: t.learn };
  });
  readonly path: Chapter[] = $derived(this.lesson === null ? [] : pathOf(this.lesson, this.plan));
  /** Of a lesson it is kept in the browser: an address is no proof, and is lost when the page is closed. */
  readonly solved: ReadonlySet<string> = $derived.by(
    () => new Set(this.plan === null ? (this.explorer.kept("solved") ?? "").split(".") : this.record.kept.solved),
  );
  readonly chapter: Chapter | null = $derived.by(() =>
    find(this.path, this.wanted ?? this.explorer.kept("learn") ?? "", this.solved),
  );
  readonly at: number = $derived(this.chapter === null ? -1 : this.path.indexOf(this.chapter));
  private readonly preparing: Resource<{ chapter: Chapter; lesson: Lesson; made: Prepared }>;
  readonly prepared: Prepared | null = $derived.by(() => {
    const found = this.preparing.value;
    return found?.chapter === this.chapter && found?.lesson === this.lesson ? found.made : null;
  });
  private readonly judging: Resource<{ of: Prepared; chosen: string; verdict: Verdict }>;
  readonly verdict: Verdict | null = $derived.by(() =>
    this.judging.value?.of === this.prepared ? (this.judging.value?.verdict ?? null) : null,
  );
  /** Whether something was chosen since the chapter was come to. */
  readonly tried: boolean = $derived.by(() => {
    const [arrival, judged] = [this.arrival, this.judging.value];
    if (arrival === null || arrival.of !== judged?.of || judged.of !== this.prepared) return false;
    return judged.chosen !== arrival.chosen || this.touched === this.prepared;
  });

  /** Call it while a component is set up: it asks as long as that is there. */
  constructor(explorer: Explorer, views: () => readonly ViewName[], plan: LessonPlan | null = lessonPlan()) {
    this.explorer = explorer;
    this.plan = plan;
    this.record = new PupilRecord(plan?.title ?? "Learn");
    this.views = views;
    // While a slider moves, what is told stays as it was: nobody reads it then.
    const turn = new Turn(true);
    this.unchanged = explorer.resource((source) => {
      const { meta, request } = turn.of(() => ({ meta: explorer.meta, request: explorer.request }));
      if (meta === null || request === null) return null;
      return meta.edits.length === 0 ? Promise.resolve(meta) : source.ask("trace", requestWith(request, []));
    });
    this.preparing = explorer.resource(
      () => {
        const { chapter, lesson } = this;
        if (chapter === null || lesson === null || this.texting || this.lacksText(chapter)) return null;
        return chapter.prepare(lesson).then((made) => ({ chapter, lesson, made }));
      },
      { showsError: true },
    );
    $effect(() => {
      const [made, name] = [this.prepared, this.chapter?.name];
      if (made !== null && name !== undefined && made.task === null && made.question == null)
        untrack(() => this.record.skipped(name));
    });
    let judged = "";
    $effect(() => {
      const [verdict, chosen] = [this.verdict, this.judging.value?.chosen ?? ""];
      const of = verdict?.of === undefined ? chosen : verdict.of;
      if (of === null) return;
      const open = this.chapter !== null && !this.solved.has(this.chapter.name);
      if (this.tried && verdict !== null && open && of !== judged) untrack(() => this.record.tried());
      judged = of;
    });
    this.judging = explorer.resource(
      () => {
        const [now, busy] = turn.of(() => [this.now(), explorer.busy] as const);
        const of = this.prepared;
        if (of?.task == null || now === null || busy || this.wanted !== null || this.going) return null;
        const chosen = chosenOf(now);
        return of.task.check(now).then((verdict) => ({ of, chosen, verdict }));
      },
      { showsError: true },
    );
    const bare = explorer.siteName === null && nothingChosen(explorer.own);
    if (bare || explorer.kept("learn") === "") this.wanted = explorer.kept("learn");
    const follow = (event: HashChangeEvent): void => this.followLink(new URL(event.newURL).hash);
    $effect(() => {
      addEventListener("hashchange", follow);
      return () => removeEventListener("hashchange", follow);
    });
    $effect(() => this.bringText());
    $effect(() => this.arrive());
    $effect(() => this.remember());
    $effect(() => this.keepAnswer());
  }

  /** A chapter with a text of its own is told with that; whoever types another there keeps it. */
  private lacksText({ name, sentence }: Chapter): boolean {
    return sentence != null && this.texted !== name && this.explorer.meta?.source !== sentence;
  }

  private bringText(): void {
    const { chapter, explorer } = this;
    if (chapter === null || explorer.busy || this.texting) return;
    if (this.lacksText(chapter)) {
      this.texting = true;
      const request = { ...explorer.request, source: chapter.sentence!, target: null, edits: [] };
      void explorer.ask(request).finally(() => (this.texting = false));
    }
    this.texted = chapter.name;
  }

  /** A link that says no more than `learn=softmax` leads to where that chapter is told, also while another is open. */
  followLink(hash: string): void {
    const { site, own } = read(hash);
    if (/^#\/?\?/.test(hash) && site === null && own.learn !== undefined && nothingChosen(own)) this.wanted = own.learn;
  }

  /** Something that the chapter speaks of was pressed: that counts as a try, also where it was chosen already. */
  touch(): void {
    this.touched = this.prepared;
  }

  /** A question that was answered rightly at once is solved. */
  solve(): void {
    const name = this.chapter?.name;
    if (name !== undefined && !this.solved.has(name)) this.keepSolved(name);
  }

  private keepSolved(name: string): void {
    if (this.plan !== null) return this.record.solve(name);
    this.explorer.keep("solved", [...this.solved, name].filter((one) => one !== "").join("."));
  }

  get error(): string | null {
    return this.preparing.error;
  }

  /** Where the chapter is told, as an address. */
  get link(): string | null {
    return this.prepared === null || this.chapter === null ? null : this.linkTo(this.chapter.name, this.prepared.place);
  }

  go(name: string): void {
    this.texted = null;
    this.wanted = name;
  }

  by(step: 1 | -1): void {
    const next = this.path[this.at + step];
    if (next !== undefined) this.go(next.name);
  }

  /** Goes to the chapter that was asked for, as soon as it is known where it is told. */
  private arrive(): void {
    const link = this.link;
    if (link === null || (this.wanted !== null && this.explorer.busy)) return;
    if (this.wanted !== null) {
      this.arrival = null;
      this.wanted = null;
      this.follow(link);
    } else if (this.arrival?.of !== this.prepared && !this.going && !this.explorer.busy) {
      // Not when the first verdict comes: on a slow machine the reader has made a move by then, and it counts.
      this.arrival = { of: this.prepared!, chosen: chosenOf(this.now()!) };
    }
  }

  private follow(link: string): void {
    const before = location.hash;
    location.hash = link;
    if (location.hash === before) return;
    this.going = true;
    addEventListener("hashchange", () => (this.going = false), { once: true });
  }

  private remember(): void {
    const name = this.chapter?.name;
    if (this.verdict?.solved !== true || this.going || name === undefined || this.solved.has(name)) return;
    this.keepSolved(name);
  }

  private keepAnswer(): void {
    const { chapter, explorer, prepared } = this;
    if (chapter === null || prepared?.keeps !== true || this.going || this.wanted !== null) return;
    const { view, own } = explorer;
    const here = ["exercise", "goal"].every((word) => own[word] === prepared.place.own?.[word]);
    if (view !== prepared.place.view || !here) return;
    const words = Object.entries(own).filter(([word]) => !(word in lasting(own)));
    untrack(() => this.record.answered(chapter.name, Object.fromEntries(words)));
  }

  private now(): Now | null {
    const { view, site, head, query, key, own, meta } = this.explorer;
    return meta === null ? null : { view, site: site?.name ?? null, head, query, key, own, meta };
  }

  /** A chapter begins with the model as it was trained: edits are left out, and what other views keep for themselves. */
  private linkTo(name: string, place: Place): string {
    const state = read(this.explorer.address);
    const request = this.explorer.request;
    const target = place.target ?? (Array.isArray(request?.target) ? null : request?.target);
    return write({
      ...state,
      view: place.view,
      request: request === null ? null : { ...request, target, edits: [] },
      unchanged: false,
      site: place.site ?? state.site,
      head: place.head ?? state.head,
      query: place.query === undefined ? state.query : place.query,
      key: place.key === undefined ? state.key : place.key,
      own: { ...lasting(this.explorer.own), ...place.own, ...this.record.kept.answers[name], learn: name },
    });
  }
}

/** The chapter of this name; where the run has no such chapter, the one that would come next; without a name the first
 * that is not solved. */
function find(path: readonly Chapter[], name: string, solved: ReadonlySet<string>): Chapter | null {
  const named = path.find((chapter) => chapter.name === name);
  if (named !== undefined) return named;
  if (name === "") return path.find((chapter) => !solved.has(chapter.name)) ?? path[0] ?? null;
  const order = CHAPTERS.findIndex((one) => one === name);
  const later = path.find((chapter) => CHAPTERS.findIndex((one) => one === chapter.name) >= order);
  return later ?? path[path.length - 1] ?? null;
}

function chosenOf(now: Now): string {
  const own = Object.entries(now.own).filter(([name]) => !["learn", "solved", "projector", "lang"].includes(name));
  return JSON.stringify([now.view, now.site, now.head, now.query, now.key, own, now.meta.edits]);
}

function nothingChosen(own: Record<string, string>): boolean {
  return Object.keys(own).length === Object.keys(lasting(own)).length;
}
