// Package openai reads the OpenAI-shaped requests that change a prompt, and writes the
// errors their senders expect.
//
// [Parse] makes one pass over the bytes of a chat, completion or embedding request and keeps
// what the prompt, the route and the accounting need. Strings alias the body wherever they
// hold no escapes, and values that are only handed on (tools, template arguments, tool calls)
// stay raw JSON, so that their key order survives. It does not render, tokenize or change a
// request, and it does not judge what an engine alone can judge: unknown fields must be valid
// JSON and are otherwise left alone.
//
// The bytes come from outside. Everything is bounded by [Limits]; nothing panics; a bad
// request is an [*Error] that says what to change. All functions are safe for concurrent use.
package openai
