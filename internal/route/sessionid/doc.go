// Package sessionid finds the name of a client's session in its request.
//
// Clients name their sessions in different places: Claude Code, Codex and OpenCode in headers of their own, OpenAI's clients in members of
// the body. A [Source] is one such place. A gateway has a list of them, and the first one that a request has counts: see [Name.Read].
//
// The package is pure. Names are only compared with each other, and are no credentials.
package sessionid
