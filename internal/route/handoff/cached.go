package handoff

import "encoding/json"

// CachedTokens returns how many tokens of the prompt the worker of an answer found in its cache, by the answer's usage; false
// if the answer has no such number.
func CachedTokens(answer []byte) (n int, ok bool) {
	values, err := members(answer, "usage")
	if err != nil || !isObject(values["usage"]) {
		return 0, false
	}
	// Chat and completions, responses, and messages.
	usage, err := members(values["usage"], "prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens")
	if err != nil {
		return 0, false
	}
	for _, group := range []string{"prompt_tokens_details", "input_tokens_details"} {
		if !isObject(usage[group]) {
			continue
		}
		details, err := members(usage[group], "cached_tokens")
		if err == nil && isCount(details["cached_tokens"], &n) {
			return n, true
		}
	}
	return n, isCount(usage["cache_read_input_tokens"], &n)
}

// isCount reads a number of at least 0.
func isCount(value []byte, n *int) bool {
	if !isNumber(value, 0, 1<<40) {
		return false
	}
	return json.Unmarshal(value, n) == nil
}
