package prompt

import "github.com/stator-project/stator/internal/engines"

// Rules are the engine's rules about which requests are acceptable, beyond what no engine can serve.
type Rules uint8

// The rules.
const (
	// VLLM refuses what vLLM refuses. It is the default, and the simulator's engine has the same rules.
	VLLM Rules = iota
	// AnyEngine refuses only what no engine can serve. What Prepare cannot read sets Prompt.Unread.
	AnyEngine
)

// RulesOf returns the rules for a kind of engine by its name in the configuration.
func RulesOf(engine string) Rules {
	if engines.Of(engine).VLLMRules {
		return VLLM
	}
	return AnyEngine
}

// WithRules returns a copy of m that applies other rules.
func (m *Model) WithRules(rules Rules) *Model {
	with := *m
	with.rules = rules
	return &with
}

// ruleError is the refusal of a request that vLLM refuses because of its form. Other engines may accept that
// form.
type ruleError struct{ refusal *Error }

// Error returns the message of the refusal.
func (e *ruleError) Error() string { return e.refusal.Error() }

// vllmRule marks a refusal as one of vLLM alone.
func vllmRule(refusal *Error) error { return &ruleError{refusal} }
