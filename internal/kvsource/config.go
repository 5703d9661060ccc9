package kvsource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/backoff"
	"github.com/stator-project/stator/internal/kv/kvevent"
)

// Config describes the addresses of a rank's stream and the way to read it. It is read by [New] and not
// changed later.
type Config struct {
	// Endpoint is the event socket to connect to: tcp://host:port or ipc://path. For TensorRT-LLM
	// it is the URL to poll, http://host:port/kv_cache_events. Each event is answered once, so no
	// other client may poll it; such engines have one rank here.
	Endpoint string
	// Bind makes the source wait at Endpoint for the engine to connect, which vLLM and SGLang do
	// if their own endpoint names a host; tcp://*:port then means every interface. Any client
	// that can reach the port can pretend to be the engine, and the newest connection wins.
	Bind bool
	// Dialect is the format of the messages; default vLLM's.
	Dialect kvevent.Dialect
	// BlockSize is the engine's, in tokens, if it is known; see kvevent.Batch.
	BlockSize int
	// Replay is the replay socket. Without one, gaps stay open and CaughtUp is never reported: a rank
	// is then exact only from number 0 on, and as long as the connection lasts.
	Replay string
	// Topic is the prefix of the topics to subscribe to; empty subscribes to all. vLLM's default
	// is empty too.
	Topic string
	// Match reports whether the messages of a topic are this source's. An endpoint of several caches counts the messages of all topics
	// together, so a message of another one is delivered without its events. Nil matches all.
	Match func(topic []byte) bool
	// Split is the size of blocks that the consumer wants, in tokens; see kvevent.Batch.
	Split int
	// Rank is the rank that batches are delivered with. It replaces the rank in the messages,
	// because engines that run their ranks as separate servers call each of them 0.
	Rank int

	// After is the last message that the consumer has already applied from an earlier source, if there was one. The source replays what
	// follows it if the engine still has it, and otherwise reports Restarted. It needs Replay.
	After *Position

	// Limits bound one message's content; zero means kvevent.DefaultLimits.
	Limits kvevent.Limits
	// MaxMessage bounds one message in bytes; default Limits.Bytes.
	MaxMessage int
	// Buffer is the number of live messages that may wait while a replay runs or the consumer is slow;
	// default 4,096. Raising it makes drops by the engine, and so replays, rarer.
	Buffer int
	// BufferBytes bounds the same messages in bytes; default 64 MiB. Beyond either bound the source
	// stops reading the connection, and the engine drops what its own queue cannot hold. That is a gap.
	BufferBytes int
	// RetryMin and RetryMax bound the pause between attempts to connect or to replay, which
	// doubles from one to the other; defaults 100 ms and 5 s.
	RetryMin, RetryMax time.Duration
	// Timeout bounds a connection attempt, each wait for a replayed message, and the time for
	// which live messages wait for a replay; default 10 s. Keep it above the time after which the
	// consumer gives up on a gap.
	Timeout time.Duration
	// Probe is the time that the stream may be silent before the source asks for missed messages;
	// default 10 s, negative never.
	Probe time.Duration
	// Dial makes the connections to an endpoint that is a URL; nil makes them without TLS.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Logger receives connections made and lost, and errors; nil discards them.
	Logger *slog.Logger
}

// Position is one message of one engine process. Two processes never publish the same number at the same time.
type Position struct {
	Seq uint64
	// Seconds is the engine's clock in the message; it is not 0.
	Seconds float64
}

func (c Config) withDefaults() Config {
	if c.Limits.Bytes <= 0 {
		c.Limits.Bytes = kvevent.DefaultLimits.Bytes
	}
	if c.MaxMessage <= 0 {
		c.MaxMessage = c.Limits.Bytes
	}
	if c.Buffer <= 0 {
		c.Buffer = 4096
	}
	if c.BufferBytes <= 0 {
		c.BufferBytes = 64 << 20
	}

	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&c.RetryMin, 100 * time.Millisecond}, {&c.RetryMax, 5 * time.Second}, {&c.Timeout, 10 * time.Second}, {&c.Probe, 10 * time.Second}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// backoff returns the pauses between attempts to connect or to replay.
func (c Config) backoff() backoff.Backoff { return backoff.Backoff{Min: c.RetryMin, Max: c.RetryMax} }

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error

	if web := overHTTP(c.Endpoint); web || c.Dialect == kvevent.TRTLLM {
		if !web || c.Dialect != kvevent.TRTLLM || c.Bind || c.Replay != "" {
			errs = append(errs, fmt.Errorf(
				"event endpoint: %q in dialect %v: only TensorRT-LLM is polled over HTTP, without a replay socket", c.Endpoint, c.Dialect))
		}
	} else if c.Bind {
		if _, err := bindAddress(c.Endpoint); err != nil {
			errs = append(errs, fmt.Errorf("event endpoint: %w", err))
		}
	} else if _, _, err := splitEndpoint(c.Endpoint); err != nil {
		errs = append(errs, fmt.Errorf("event endpoint: %w", err))
	}

	if c.Replay != "" {
		if _, _, err := splitEndpoint(c.Replay); err != nil {
			errs = append(errs, fmt.Errorf("replay endpoint: %w", err))
		}
	}
	if c.After != nil && c.Replay == "" {
		errs = append(errs, errors.New("a source begins after a message only if its engine has a replay socket"))
	}
	if c.Rank < 0 {
		errs = append(errs, fmt.Errorf("rank is %d: it must not be negative", c.Rank))
	}
	if c.RetryMin < 0 || c.RetryMax < 0 || c.Timeout < 0 {
		errs = append(errs, errors.New("retryMin, retryMax and timeout must not be negative"))
	}
	return errors.Join(errs...)
}

// splitEndpoint returns the arguments of net.Dial for a ZMQ endpoint.
func splitEndpoint(endpoint string) (network, address string, err error) {
	scheme, address, _ := strings.Cut(endpoint, "://")
	switch {
	case scheme == "tcp" && strings.HasPrefix(address, "*:"):
		return "", "", fmt.Errorf("%q is an address to bind: name the engine's host instead of *", endpoint)
	case scheme == "tcp" && address != "":
		return "tcp", address, nil
	case scheme == "ipc" && address != "":
		return "unix", address, nil
	}
	return "", "", fmt.Errorf("%q is not an endpoint such as tcp://10.0.0.1:5557 or ipc:///run/engine.sock", endpoint)
}

// bindAddress returns the address to listen on for a ZMQ endpoint that binds.
func bindAddress(endpoint string) (string, error) {
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	if _, _, err := net.SplitHostPort(address); !ok || err != nil {
		return "", fmt.Errorf("%q is not an endpoint to bind such as tcp://*:5557", endpoint)
	}
	return strings.TrimPrefix(address, "*"), nil
}
