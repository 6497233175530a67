import "../src/app.css";

import { mount } from "svelte";

import App from "../src/App.svelte";
import { FakeSource } from "./fake";

export default mount(App, { target: document.getElementById("app")!, props: { source: new FakeSource() } });
