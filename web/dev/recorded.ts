/** The demo's own answers to one text, for unit tests: `python -m tests.serve.write_recorded RUN` writes them. */

import { RecordedSource } from "../src/lib/recorded";
import { VIEWS } from "../src/lib/views";
import answers from "./recorded.json";

export const recorded = new RecordedSource(answers, VIEWS);
