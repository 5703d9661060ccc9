// Package openai reads the requests of OpenAI's APIs, and of Anthropic's, that change a prompt, and writes the
// errors that their clients expect.
//
// [Parse] makes one pass over the bytes of a chat, completion, embedding, response or message request and keeps
// the members that the prompt, the route and the accounting need. Strings alias the body wherever they
// hold no escapes, and values that are only handed on (tools, template arguments, tool calls)
// stay raw JSON, so that their key order survives. It does not render, tokenize or change a
// request. Unknown fields must be valid JSON; whether an engine accepts them is not checked.
//
// The routing hints of a request are listed once, in one table, with their members, headers and bounds: see
// [Hints].
//
// Parse refuses only what no engine can serve. A form that it cannot read and some engine accepts sets
// [Request.Unread]; a form that only some engines accept sets [Request.Facts].
//
// Messages of Anthropic's API and items of responses become messages of a chat, as vLLM 0.32.0 converts them before it applies the
// chat template. Of these two APIs only forms are read whose conversion is known exactly: every other one sets Unread, and is the
// engine's to judge.
//
// The bytes come from outside. Everything is bounded by [Limits]; nothing panics; a bad
// request is an [*Error] that describes what to change. All functions are safe for concurrent use.
package openai
