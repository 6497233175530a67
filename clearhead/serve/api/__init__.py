"""The API: every kind of run over HTTP, in OpenAI's form where it has one."""
