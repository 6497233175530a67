import "./app.css";

import { mount } from "svelte";

import App from "./App.svelte";
import { ServerSource } from "./lib/server";

export default mount(App, { target: document.getElementById("app")!, props: { source: new ServerSource() } });
