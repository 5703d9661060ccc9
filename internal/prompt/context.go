package prompt

// WithContextLength returns a copy of m with another context length, in tokens, for an engine whose setting
// differs from the model's files. 0 keeps the length of the files.
func (m *Model) WithContextLength(tokens int) *Model {
	if tokens == 0 || tokens == m.context {
		return m
	}
	with := *m
	with.context = tokens
	return &with
}
