package perfmodel

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// npy writes an array as NumPy does.
func npy(values any, kind string, n int) []byte {
	header := fmt.Sprintf("{'descr': '<%s', 'fortran_order': False, 'shape': (%d,), }", kind, n)
	header += strings.Repeat(" ", 64-(10+len(header)+1)%64) + "\n"
	b := append([]byte("\x93NUMPY\x01\x00"), byte(len(header)), byte(len(header)>>8))
	b = append(b, header...)
	b, err := binary.Append(b, binary.LittleEndian, values)
	if err != nil {
		panic(err)
	}
	return b
}

// npz writes an archive of arrays.
func npz(t testing.TB, files map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for name, data := range files {
		w, err := z.Create(name + ".npy")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// small is a profile of round numbers: 10 ms and 0.01 ms a token of prefill; decode steps of 5 ms and, at context 100 and 300, 10 ms and 20
// ms more if the cache of 10,000 tokens is full.
func small(t testing.TB) fstest.MapFS {
	f := func(v ...float64) []byte { return npy(v, "f8", len(v)) }
	return fstest.MapFS{
		"prefill_raw_data.npz": {Data: npz(t, map[string][]byte{
			"prefill_isl": npy([]int64{2000, 100, 1000}, "i8", 3), "prefill_ttft": f(30, 11, 20), "prefill_thpt_per_gpu": f(1, 2, 3),
		})},
		"decode_raw_data.npz": {Data: npz(t, map[string][]byte{
			"x_kv_usage": f(0, 1, 0, 1), "y_context_length": f(100, 100, 300, 300), "z_itl": f(5, 15, 5, 25),
			"max_kv_tokens": npy([]int64{10000}, "i8", 1),
		})},
	}
}

// smallJSON is the same in JSON.
var smallJSON = fstest.MapFS{
	"prefill_raw_data.json": {Data: []byte(`{"prefill_isl": [100, 1000, 2000], "prefill_ttft": [11, 20, 30], "note": "x"}`)},
	"decode_raw_data.json": {Data: []byte(`{"x_kv_usage": [0, 1, 0, 1], "y_context_length": [100, 100, 300, 300],
		"z_itl": [5, 15, 5, 25], "max_kv_tokens": 10000}`)},
}

func TestProfile(t *testing.T) {
	moved := fstest.MapFS{
		"selected_prefill_interpolation/raw_data.npz": small(t)["prefill_raw_data.npz"],
		"selected_decode_interpolation/raw_data.npz":  small(t)["decode_raw_data.npz"],
	}
	for name, folder := range map[string]fs.FS{"npz": small(t), "json": smallJSON, "folders": moved} {
		p, err := LoadProfile(folder)
		if err != nil {
			t.Fatal(name, err)
		}
		for _, c := range []struct {
			what string
			got  time.Duration
			want float64 // ms
		}{
			{"nothing", p.Prefill(Prefill{}) + p.Decode(Decode{}), 0},
			{"all of it cached", p.Prefill(Prefill{Requests: 1, Input: 100, Prefix: 100}), 0},
			{"a length that was measured", p.Prefill(Prefill{Requests: 1, Input: 1000}), 20},
			{"one between", p.Prefill(Prefill{Requests: 2, Input: 1800, Prefix: 300}), 25},
			{"a shorter one", p.Prefill(Prefill{Requests: 1, Input: 50}), 10.5},
			{"a longer one", p.Prefill(Prefill{Requests: 1, Input: 4000}), 50},
			{"a context that was measured", p.Decode(Decode{Requests: 10, Context: 1000}), 6},
			{"one between", p.Decode(Decode{Requests: 5, Context: 1000}), 6.5},
			{"a shorter one", p.Decode(Decode{Requests: 100, Context: 1000}), 6},
			{"a longer one", p.Decode(Decode{Requests: 1, Context: 1000}), 7},
			{"a cache larger than the measured one", p.Decode(Decode{Requests: 200, Context: 20000}), 25},
		} {
			if got := float64(c.got) / float64(time.Millisecond); math.Abs(got-c.want) > 1e-6 {
				t.Errorf("%s, %s: %v ms, want %v", name, c.what, got, c.want)
			}
		}
	}
}

// The profile of a Llama-3.1-8B on one H200 that lies beside the repository: at the measured
// points, it gives the measured times.
func TestPublishedProfile(t *testing.T) {
	const folder = "../../../shared/reference/planner-profile"
	if _, err := os.Stat(folder); err != nil {
		t.Skip("the profile is not beside the repository (" + folder + ")")
	}
	p, err := LoadProfile(os.DirFS(folder))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		got  time.Duration
		want float64
	}{
		{p.Prefill(Prefill{Requests: 1, Input: 1117}), 38.4941},
		{p.Prefill(Prefill{Requests: 1, Input: 3000}), 61.2481},
		{p.Decode(Decode{Requests: 49, Context: 49 * 2997}), 9.9375}, // .1554 of 945,029 tokens
	} {
		if got := float64(c.got) / float64(time.Millisecond); math.Abs(got-c.want) > 0.01 {
			t.Errorf("%v ms, want %v", got, c.want)
		}
	}
}

// The error names each mistake of a profile.
func TestProfileIsChecked(t *testing.T) {
	with := func(name, data string) fs.FS {
		m := fstest.MapFS{}
		for k, v := range smallJSON {
			m[k] = v
		}
		m[name] = &fstest.MapFile{Data: []byte(data)}
		return m
	}
	const prefill, decode = "prefill_raw_data.json", "decode_raw_data.json"
	for _, c := range []struct {
		folder fs.FS
		want   string
	}{
		{fstest.MapFS{}, "there is none of prefill_raw_data.npz, prefill_raw_data.json"},
		{with(prefill, `[`), "prefill_raw_data.json: unexpected end"},
		{with(prefill, `{}`), "prefill_isl has 0 values"},
		{with(prefill, `{"prefill_isl": [1, 2], "prefill_ttft": [1]}`), "prefill_isl has 2 values and prefill_ttft 1"},
		{with(prefill, `{"prefill_isl": [1, 1], "prefill_ttft": [1, 2]}`), "prefill: 1 was measured twice"},
		{with(prefill, `{"prefill_isl": [1, 2], "prefill_ttft": [1, -2]}`), "prefill: 2 takes -2 ms"},
		{with(decode, `{"x_kv_usage": [1], "y_context_length": [1], "z_itl": [1]}`), "max_kv_tokens must be one number"},
		{with(decode, `{"x_kv_usage": [1], "y_context_length": [0], "z_itl": [1], "max_kv_tokens": [5]}`), "y_context_length 0"},
		{with("prefill_raw_data.npz", "PK"), "read archive"},
		{with("prefill_raw_data.npz", string(npz(t, map[string][]byte{"prefill_isl": npy([]int16{1}, "i2", 1)}))), `of kind "i2"`},
		{with("prefill_raw_data.npz", string(npz(t, map[string][]byte{"prefill_isl": npy([]int64{1}, "i8", 2)}))),
			"8 bytes for 2 numbers of 8"},
		{with("prefill_raw_data.npz", string(npz(t, map[string][]byte{"prefill_isl": npy([]float64{math.NaN()}, "f8", 1)}))),
			"value 0 is not a number"},
		{with("prefill_raw_data.npz", string(npz(t, map[string][]byte{"prefill_isl": []byte("\x93NUMPY\x01\x00\xff\xff")}))),
			"header is cut off"},
	} {
		if p, err := LoadProfile(c.folder); p != nil || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// FuzzProfile: whatever the files are, they are refused, or every pass of sensible size takes a
// positive time of at most an hour.
func FuzzProfile(f *testing.F) {
	s := small(f)
	f.Add(s["prefill_raw_data.npz"].Data, s["decode_raw_data.npz"].Data)
	f.Add(smallJSON["prefill_raw_data.json"].Data, smallJSON["decode_raw_data.json"].Data)
	f.Fuzz(func(t *testing.T, prefill, decode []byte) {
		for _, ext := range []string{".npz", ".json"} {
			p, err := LoadProfile(fstest.MapFS{"prefill_raw_data" + ext: {Data: prefill}, "decode_raw_data" + ext: {Data: decode}})
			if (p == nil) != (err != nil) {
				t.Fatalf("%v, %v", p, err)
			}
			if err != nil {
				continue
			}
			for _, n := range []int{1, 100, 100_000, 1 << 30} {
				a, b := p.Prefill(Prefill{Requests: 1, Input: n}), p.Decode(Decode{Requests: 1 + n/1000, Context: n, Capacity: n})
				if a <= 0 || b <= 0 || a > time.Hour || b > time.Hour {
					t.Fatalf("%d tokens: %v and %v", n, a, b)
				}
			}
		}
	})
}

// As two lines, a profile gives the same times in its straight parts.
func TestProfileAsSpeed(t *testing.T) {
	p, err := LoadProfile(small(t))
	if err != nil {
		t.Fatal(err)
	}
	s := p.Speed()
	for _, c := range []struct {
		what      string
		got, want time.Duration
	}{
		{"a prompt", s.Prefill.Prefill(1_500), 25 * time.Millisecond},
		{"a longer one", s.Prefill.Prefill(6_000), 70 * time.Millisecond},
		{"a step", s.Decode.Step(100_000), p.Decode(Decode{Requests: 33, Context: 99_999})},
	} {
		if math.Abs(c.got.Seconds()/c.want.Seconds()-1) > 0.01 {
			t.Errorf("%s takes %v, want %v", c.what, c.got, c.want)
		}
	}
}

// The measured points are kept as they are, although the timing smooths a step that seems to be faster than a smaller one.
func TestMeasured(t *testing.T) {
	p, err := LoadProfile(fstest.MapFS{
		"prefill_raw_data.json": {Data: []byte(`{"prefill_isl": [1000, 3000], "prefill_ttft": [20, 50], "prefill_thpt_per_gpu": [50000, 60000]}`)},
		"decode_raw_data.json": {Data: []byte(`{"x_kv_usage": [0.1, 0.2], "y_context_length": [1000, 1000], "z_itl": [9, 8],
			"max_kv_tokens": 50000}`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	m := p.Measured()
	if len(m.Prefill) != 2 || m.Prefill[1] != (MeasuredPrompt{3000, 50, 60000}) {
		t.Errorf("prompts %v", m.Prefill)
	}
	if len(m.Decode) != 2 || m.Decode[0] != (MeasuredStep{0.1, 1000, 9, 0}) || m.Decode[1] != (MeasuredStep{0.2, 1000, 8, 0}) {
		t.Errorf("steps %v", m.Decode)
	}
	if m.KVTokens != 50000 {
		t.Errorf("%v tokens of KV cache", m.KVTokens)
	}
}
