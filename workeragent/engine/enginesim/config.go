package enginesim

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/sim/engine"
)

// Model turns requests into tokens; a *prompt.Model does.
type Model interface {
	Prepare(req *prompt.Request, dst *prompt.Prompt) error
	ContextLength() int
}

// Vocabulary turns tokens into text; the tokenizer of a *prompt.Model does.
type Vocabulary interface {
	AppendDecode(dst []byte, ids ...uint32) []byte
	VocabSize() int
}

// Config is what a simulated engine is started with. It is read only by [New].
type Config struct {
	// Listen is the HTTP address, host:port; port 0 takes a free one. Default 127.0.0.1:0.
	Listen string
	// Events and Replay are the ZMQ endpoints, tcp://host:port, to publish KV events and to replay
	// them; port 0 takes a free one. Empty: none.
	Events, Replay string
	// Topic is the first frame of every event; default empty, as vLLM's.
	Topic string
	// Rank is the data-parallel rank that events name; default 0.
	Rank int

	// ModelName is what clients name; it is required. Aliases are other names of the same
	// model. Adapters are LoRA adapters served beside it, each under its own name and with
	// prefixes of its own.
	ModelName         string
	Aliases, Adapters []string
	// Model and Vocabulary are required.
	Model      Model
	Vocabulary Vocabulary

	// Engine is the core: blocks, block size, batch, timing (with its speed-up), hash seed. Its
	// MaxModelLen is lowered to the model's own.
	Engine engine.Config
	// Seed chooses the answers; requests with a seed of their own add theirs. Default 0.
	Seed uint64
	// AnswerTokens is the mean length of an answer that the request does not bound; default 64.
	AnswerTokens int

	// StartDelay is how long the engine is loading: until then everything answers 503. Default 0.
	StartDelay time.Duration
	// Drain bounds how long Run goes on for requests in flight when its context ends; default
	// 10 s.
	Drain time.Duration
	// MaxBody bounds a request's body in bytes; default 64 MiB.
	MaxBody int64
	// MaxAnswers bounds n times the prompts of one request; default 128.
	MaxAnswers int
	// ReplayBuffer is how many event messages are kept for replay, as vLLM's buffer_steps;
	// default 10,000. SubscriberQueue is how many may wait for one subscriber before it loses
	// some, as vLLM's hwm; default 10,000.
	ReplayBuffer, SubscriberQueue int
	// Logger hears when the engine starts and stops; nil discards.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:0")
	c.AnswerTokens = cmp.Or(c.AnswerTokens, 64)
	c.Drain = cmp.Or(c.Drain, 10*time.Second)
	c.MaxBody = cmp.Or(c.MaxBody, 64<<20)
	c.MaxAnswers = cmp.Or(c.MaxAnswers, 128)
	c.ReplayBuffer = cmp.Or(c.ReplayBuffer, 10000)
	c.SubscriberQueue = cmp.Or(c.SubscriberQueue, 10000)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Engine.Blocks = cmp.Or(c.Engine.Blocks, 16384)
	c.Engine.BlockSize = cmp.Or(c.Engine.BlockSize, 16)
	c.Engine.MaxModelLen = cmp.Or(c.Engine.MaxModelLen, 131072)
	if c.Model != nil && c.Model.ContextLength() > 0 {
		c.Engine.MaxModelLen = min(c.Engine.MaxModelLen, c.Model.ContextLength())
	}
	return c
}

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error
	if c.ModelName == "" {
		errs = append(errs, errors.New("model name is empty"))
	}
	if c.Model == nil || c.Vocabulary == nil {
		errs = append(errs, errors.New("model and vocabulary are required"))
	}

	for _, e := range []string{c.Events, c.Replay} {
		if _, err := tcpAddress(e); e != "" && err != nil {
			errs = append(errs, err)
		}
	}

	if c.Replay != "" && c.Events == "" {
		errs = append(errs, errors.New("replay needs events: name an events endpoint too"))
	}

	for name, v := range map[string]int64{"answer tokens": int64(c.AnswerTokens), "drain": int64(c.Drain), "max body": c.MaxBody,
		"max answers": int64(c.MaxAnswers), "replay buffer": int64(c.ReplayBuffer), "subscriber queue": int64(c.SubscriberQueue),
		"start delay": int64(c.StartDelay), "rank": int64(c.Rank)} {
		if v < 0 {
			errs = append(errs, fmt.Errorf("%s is %d: it must not be negative", name, v))
		}
	}
	return errors.Join(append(errs, c.Engine.Validate())...)
}
