package kvsource

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/stator-project/stator/internal/kv/kvevent"
)

// Config says where a rank publishes. It is read only by [New].
type Config struct {
	// Endpoint is the event socket to connect to: tcp://host:port or ipc://path. Of TensorRT-LLM
	// it is the address to ask, http://host:port/kv_cache_events, which nobody else may ask; its
	// engines have one rank here.
	Endpoint string
	// Bind makes the source wait at Endpoint for the engine to connect, which vLLM and SGLang do
	// where their own endpoint names a host; tcp://*:port then means every interface. Whoever
	// can reach the port can speak as the engine, and the newest connection is believed.
	Bind bool
	// Dialect is what the messages are said in; default vLLM's.
	Dialect kvevent.Dialect
	// BlockSize is the engine's where it is known; see kvevent.Batch.
	BlockSize int
	// Replay is the replay socket. Empty: gaps are reported to apply and stay.
	Replay string
	// Topic is the prefix of the topics to subscribe to; empty subscribes to all. vLLM's default
	// is empty too.
	Topic string
	// Rank is what batches are handed on as, whatever the message says: engines that run
	// their ranks as separate servers call each of them 0.
	Rank int

	// Limits bound one message's content; zero means kvevent.DefaultLimits.
	Limits kvevent.Limits
	// MaxMessage bounds one message in bytes; default Limits.Bytes.
	MaxMessage int
	// Buffer is how many live messages may wait while a replay runs or apply is slow; default
	// 4,096. Raising it makes drops by the engine, and so replays, rarer.
	Buffer int
	// RetryMin and RetryMax bound the pause between attempts to connect or to replay, which
	// doubles from one to the other; defaults 100 ms and 5 s.
	RetryMin, RetryMax time.Duration
	// Timeout bounds a connection attempt and each wait for a replayed message; default 10 s. So
	// long may live messages wait for a replay that does not come or does not help; keep it
	// above the time after which apply gives up on a gap.
	Timeout time.Duration
	// Probe is how long the stream may be silent before the source asks whether it missed
	// something; default 10 s, negative never.
	Probe time.Duration
	// Connected is told when a connection to the event socket was made (true) or lost (false);
	// nil is not. It must not block, and is not called while Run returns.
	Connected func(up bool)
	// Logger hears of connections lost and found; nil discards.
	Logger *slog.Logger
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
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&c.RetryMin, 100 * time.Millisecond}, {&c.RetryMax, 5 * time.Second}, {&c.Timeout, 10 * time.Second}, {&c.Probe, 10 * time.Second}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.Connected == nil {
		c.Connected = func(bool) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error
	if web := overHTTP(c.Endpoint); web || c.Dialect == kvevent.TRTLLM {
		if !web || c.Dialect != kvevent.TRTLLM || c.Bind || c.Replay != "" {
			errs = append(errs, fmt.Errorf("event endpoint: %q in dialect %v: TensorRT-LLM, and no other, is asked over HTTP, without replay", c.Endpoint, c.Dialect))
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
	if c.Rank < 0 {
		errs = append(errs, fmt.Errorf("rank is %d: it must not be negative", c.Rank))
	}
	if c.RetryMin < 0 || c.RetryMax < 0 || c.Timeout < 0 {
		errs = append(errs, errors.New("retryMin, retryMax and timeout must not be negative"))
	}
	return errors.Join(errs...)
}

// splitEndpoint turns a ZMQ endpoint into what the net package dials.
func splitEndpoint(endpoint string) (network, address string, err error) {
	scheme, address, _ := strings.Cut(endpoint, "://")
	switch {
	case scheme == "tcp" && strings.HasPrefix(address, "*:"):
		return "", "", fmt.Errorf("%q is where an engine binds: name its host instead of *", endpoint)
	case scheme == "tcp" && address != "":
		return "tcp", address, nil
	case scheme == "ipc" && address != "":
		return "unix", address, nil
	}
	return "", "", fmt.Errorf("%q is not an endpoint such as tcp://10.0.0.1:5557 or ipc:///run/engine.sock", endpoint)
}

// bindAddress turns a ZMQ endpoint into what the net package listens at.
func bindAddress(endpoint string) (string, error) {
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	if _, _, err := net.SplitHostPort(address); !ok || err != nil {
		return "", fmt.Errorf("%q is not an endpoint to bind such as tcp://*:5557", endpoint)
	}
	return strings.TrimPrefix(address, "*"), nil
}
