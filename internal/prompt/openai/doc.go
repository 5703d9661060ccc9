// Package openai reads the OpenAI-shaped requests that change a prompt, and writes the
// errors that their clients expect.
//
// [Parse] makes one pass over the bytes of a chat, completion or embedding request and keeps
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
// The bytes come from outside. Everything is bounded by [Limits]; nothing panics; a bad
// request is an [*Error] that describes what to change. All functions are safe for concurrent use.
package openai
