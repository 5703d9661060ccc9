package engines

// Exec is any command of the user's, and an engine of a kind that is not known: a server with OpenAI's pages.
var Exec = &Kind{
	Name:    "exec",
	Dialect: VLLMEvents, Pages: OpenAIPages,
	Launch:   Launch{Shape: UserCommand},
	Remedies: vllmRemedies,
}
