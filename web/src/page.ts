import "./app.css";

import { mount } from "svelte";

import { EmbeddedSource, readSaved } from "./lib/embedded";
import Page from "./Page.svelte";
import ErrorNote from "./parts/ErrorNote.svelte";

const target = document.getElementById("app")!;
const text = document.getElementById("clearhead-data")?.textContent ?? "";
try {
  mount(Page, { target, props: { source: new EmbeddedSource(readSaved(text)) } });
} catch (error) {
  mount(ErrorNote, { target, props: { message: error instanceof Error ? error.message : String(error) } });
}
