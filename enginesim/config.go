package enginesim

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/stator-project/stator/internal/fleet"
	"github.com/stator-project/stator/internal/prompt"
	"github.com/stator-project/stator/internal/sim/engine"
)

// Model prepares the prompts of requests. *prompt.Model implements it.
type Model interface {
	// Prepare renders and tokenizes a request into dst.
	Prepare(req *prompt.Request, dst *prompt.Prompt) error
	// ContextLength returns the longest context in tokens, or 0 if the model has no bound.
	ContextLength() int
}

// Vocabulary decodes tokens. The tokenizer of a *prompt.Model implements it.
type Vocabulary interface {
	// AppendDecode appends the text of tokens.
	AppendDecode(dst []byte, ids ...uint32) []byte
	// VocabSize returns the number of tokens.
	VocabSize() int
}

// Config configures a simulated engine. Zero fields have their defaults. Only [New] reads it.
type Config struct {
	// Listen is the HTTP address, host:port. Port 0 means a free port. Default 127.0.0.1:0.
	Listen string
	// TLS are the settings of the HTTP server; nil means no TLS.
	TLS *tls.Config
	// Events and Replay are the ZMQ endpoints, tcp://host:port or ipc://path, of KV events and of their replay.
	// Port 0 means a free port. An empty endpoint means that there is none.
	Events, Replay string
	// KVTransfer is the address, host:port, of the side channel from which other engines fetch KV caches. Port 0 means a free
	// port. An empty address means that the engine transfers no caches.
	KVTransfer string
	// KVTransferKind is the handshake of these transfers; default nixl.
	KVTransferKind fleet.Transfer
	// KVTransferRole is fleet.Prefill or fleet.Decode for kind bootstrap: such an engine serves one half of requests. Engines of
	// other kinds do what each request asks for.
	KVTransferRole fleet.Role
	// KVStore is the Unix socket of the store of KV blocks of the node, see package session. Empty means none.
	KVStore string
	// Outside is a cache outside the engine; nil means none. Its methods are called by several goroutines.
	Outside Outside
	// Topic is the first frame of every message of events; default empty, as in vLLM.
	Topic string
	// Rank is the data-parallel rank in events; default 0.
	Rank int

	// Root is the folder of the model as the engine lists it; the default is ModelName.
	Root string
	// ModelName is the name that clients use; it is required. Aliases are further names of the same model.
	// Adapters are the LoRA adapters that are loaded from the beginning, each with a name and with separate prefixes.
	ModelName         string
	Aliases, Adapters []string
	// LoadAdapters lets clients load and unload adapters, as vLLM's --enable-lora does with the variable
	// VLLM_ALLOW_RUNTIME_LORA_UPDATING.
	LoadAdapters bool
	// Model and Vocabulary are required.
	Model      Model
	Vocabulary Vocabulary

	// NoCaching computes each prompt in full, and publishes no blocks, as vLLM does with --no-enable-prefix-caching.
	NoCaching bool
	// Engine configures the core: blocks, block size, batch, timing, hash seed. MaxModelLen is lowered to the
	// model's context length.
	Engine engine.Config
	// Seed determines the answers, together with the seed of a request. Default 0.
	Seed uint64
	// AnswerTokens is the mean length of answers that the request does not bound; default 64. OwnLength has bounded answers end by
	// themselves at the same length: agents ask for 32,000 tokens, and models end long before.
	AnswerTokens int
	OwnLength    bool
	// ThinkTokens is the number of tokens of an answer that are thinking: its first ones. Chats, messages and responses have them apart
	// from the text, as vLLM sends them with a reasoning parser. Default 0.
	ThinkTokens int
	// StreamInterval is the number of tokens that a stream has in one write, as vLLM's --stream-interval; default 1. The first
	// token is written at once, and so are the last ones.
	StreamInterval int

	// StartDelay is the time that the engine takes to load. Until then the answer to every request is 503. Default 0.
	StartDelay time.Duration
	// Drain bounds how long running requests may continue when the context of Run ends; default 10 s.
	Drain time.Duration
	// Lease is the time for which the blocks of a prompt are kept for another engine that does not fetch them; default 30
	// s. TransferTimeout is the longest time that the engine waits for another one; default 5 s. Other kinds than nixl
	// have other defaults, which the real engines have. TransferBase and TransferToken are the time of a transfer: a
	// constant part, default 1 ms, and a further part for each token, default 3 µs.
	Lease, TransferTimeout, TransferBase, TransferToken time.Duration
	// MaxBody bounds the body of a request, in bytes; default 64 MiB.
	MaxBody int64
	// MaxAnswers bounds the answers of one request: n times its prompts. Default 128.
	MaxAnswers int
	// ReplayBuffer is the number of messages of events that can be replayed, as vLLM's buffer_steps; default
	// 10,000. SubscriberQueue is the number of messages that may wait for one subscriber before messages are
	// dropped, as vLLM's hwm; default 10,000.
	ReplayBuffer, SubscriberQueue int
	// Logger logs the start and the stop of the engine; nil discards the log.
	Logger *slog.Logger
}

// transferTimes are the defaults of Lease and TransferTimeout: the real engines have the same.
var transferTimes = map[fleet.Transfer]struct{ lease, timeout time.Duration }{
	fleet.TransferNixl:    {30 * time.Second, 5 * time.Second},
	fleet.TransferContext: {60 * time.Second, 60 * time.Second}, // kv_transfer_timeout_ms
	// SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT and SGLANG_DISAGGREGATION_WAITING_TIMEOUT. Blocks belong to requests.
	fleet.TransferBootstrap: {300 * time.Second, 300 * time.Second},
	fleet.TransferP2P:       {60 * time.Second, 30 * time.Second}, // _UNBOUND_STORE_TIMEOUT_S, VLLM_P2P_HANDSHAKE_TIMEOUT_S
}

// withDefaults sets the defaults, as vLLM has them if it has the same setting.
func (c Config) withDefaults() Config {
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:0")
	c.AnswerTokens = cmp.Or(c.AnswerTokens, 64)
	c.StreamInterval = cmp.Or(c.StreamInterval, 1)
	c.Drain = cmp.Or(c.Drain, 10*time.Second)
	c.KVTransferKind = cmp.Or(c.KVTransferKind, fleet.TransferNixl)
	times := transferTimes[c.KVTransferKind]
	c.Lease = cmp.Or(c.Lease, times.lease)
	c.TransferTimeout = cmp.Or(c.TransferTimeout, times.timeout)
	c.TransferBase = cmp.Or(c.TransferBase, time.Millisecond)
	c.TransferToken = cmp.Or(c.TransferToken, 3*time.Microsecond)
	c.MaxBody = cmp.Or(c.MaxBody, 64<<20)
	c.MaxAnswers = cmp.Or(c.MaxAnswers, 128)
	c.ReplayBuffer = cmp.Or(c.ReplayBuffer, 10000)
	c.SubscriberQueue = cmp.Or(c.SubscriberQueue, 10000)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Engine.Blocks = cmp.Or(c.Engine.Blocks, 16384)
	c.Engine.BlockSize = cmp.Or(c.Engine.BlockSize, 16)
	c.Engine.MaxModelLen = cmp.Or(c.Engine.MaxModelLen, 131072)
	// A model may have a shorter context than the engine, never a longer one.
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

	if c.KVTransferKind == fleet.TransferBootstrap && c.KVTransferRole != fleet.Prefill && c.KVTransferRole != fleet.Decode {
		errs = append(errs, errors.New("transfers of kind bootstrap need the role prefill or decode"))
	}
	for _, e := range []string{c.Events, c.Replay} {
		if _, _, err := splitEndpoint(e); e != "" && err != nil {
			errs = append(errs, err)
		}
	}

	if c.Replay != "" && c.Events == "" {
		errs = append(errs, errors.New("replay needs events: name an events endpoint too"))
	}

	for name, v := range map[string]int64{"answer tokens": int64(c.AnswerTokens),
		"stream interval": int64(c.StreamInterval), "drain": int64(c.Drain), "max body": c.MaxBody,
		"max answers": int64(c.MaxAnswers), "replay buffer": int64(c.ReplayBuffer), "subscriber queue": int64(c.SubscriberQueue),
		"start delay": int64(c.StartDelay), "rank": int64(c.Rank), "lease": int64(c.Lease), "transfer timeout": int64(c.TransferTimeout),
		"transfer time": int64(min(c.TransferBase, c.TransferToken))} {
		if v < 0 {
			errs = append(errs, fmt.Errorf("%s is %d: it must not be negative", name, v))
		}
	}
	return errors.Join(append(errs, c.Engine.Validate())...)
}
