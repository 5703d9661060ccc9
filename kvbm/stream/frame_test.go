package stream

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/stator-project/stator/internal/kv/block"
)

func TestFramesComeBack(t *testing.T) {
	keys := []block.Key{{1}, {2, 3}, {15: 9}}
	b := appendRequest(nil, 77, keys)
	f, err := readFrame(bytes.NewReader(b), false, 64)
	if err != nil || f.kind != kindRequest || f.length != len(b)-frameBytes {
		t.Fatalf("%+v, %v", f, err)
	}
	if id, got := parseRequest(b[frameBytes:]); id != 77 || !slices.Equal(got, keys) {
		t.Errorf("request %d of %v", id, got)
	}

	want := blockFrame{id: 1, index: 2, generation: 3 << 40, sum: 4, length: 64}
	b = append(want.append(nil), make([]byte, 64)...)
	f, err = readFrame(bytes.NewReader(b), true, 64)
	if err != nil || f.kind != kindBlock {
		t.Fatalf("%+v, %v", f, err)
	}
	if got, err := parseBlock([blockHeader]byte(b[frameBytes:]), f.length); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestLengthsAreBounded has frames that are too long, too short, or from the wrong side.
func TestLengthsAreBounded(t *testing.T) {
	for _, c := range []struct {
		kind       kind
		length     int
		fromServer bool
	}{
		{0, 4, true}, {99, 4, false}, {kindHello, 0, false}, {kindHello, mostHello + 1, true}, {kindRefused, 0, true}, {kindRefused, mostText + 2, true}, {kindRequest, 4, false}, {kindRequest, 21, false},
		{kindRequest, 4 + keyBytes*(mostKeys+1), false}, {kindRequest, 20, true}, {kindCredit, 5, false}, {kindCancel, 4, true},
		{kindBlock, 64, true}, {kindBlock, blockHeader + 65, true}, {kindBlock, blockHeader + 64, false}, {kindBusy, 4, false}, {kindBusy, 1 << 31, true},
		{kindAsk, 4, false}, {kindAsk, 12, true}, {kindSummary, 11, true}, {kindSummary, 12, false}, {kindSummary, 13 + MostSummary, true},
		{kindCall, 4, false}, {kindCall, 5 + MostCall, false}, {kindCall, 5, true}, {kindAnswer, 4, true}, {kindAnswer, 5, false}, {kindAnswer, 6 + MostAnswer, true},
	} {
		if _, err := readFrame(bytes.NewReader(appendFrame(nil, c.kind, c.length)), c.fromServer, 64); !errors.Is(err, ErrProtocol) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// FuzzFrames reads input that a peer may send: frames of either side, and a hello.
func FuzzFrames(f *testing.F) {
	hello, _ := json.Marshal(hello{Version: version, Node: "node", Layout: &block.Layout{Model: "m"}})
	f.Add(appendRequest(nil, 1, []block.Key{{1}}), false)
	f.Add(append(blockFrame{id: 1, length: 64}.append(nil), make([]byte, 64)...), true)
	f.Add(append(appendFrame(nil, kindHello, len(hello)), hello...), false)
	f.Add(appendNumber(nil, kindCredit, 5), false)
	f.Add(append(appendSummary(nil, kindSummary, 1, 2, 3), 1, 2, 3), true)
	f.Fuzz(func(t *testing.T, b []byte, fromServer bool) {
		r := bytes.NewReader(b)
		for {
			frame, err := readFrame(r, fromServer, 64)
			if err != nil {
				return
			}
			if frame.length > max(mostHello, 4+mostKeys*keyBytes) {
				t.Fatalf("a frame of %d bytes", frame.length)
			}
			content := make([]byte, frame.length)
			if _, err := io.ReadFull(r, content); err != nil {
				return
			}
			switch frame.kind {
			case kindRequest:
				if _, keys := parseRequest(content); len(keys) == 0 || len(keys) > mostKeys {
					t.Errorf("%d keys", len(keys))
				}
			case kindBlock:
				_, _ = parseBlock([blockHeader]byte(content), frame.length)
			case kindHello:
				h, err := parseHello(content, !fromServer)
				if err == nil && !fromServer && h.Layout.Validate() != nil {
					t.Error("a hello with a wrong layout")
				}
			}
		}
	})
}
