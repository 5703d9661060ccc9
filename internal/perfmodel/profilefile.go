package perfmodel

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// arrays maps names to lists of numbers.
type arrays map[string][]float64

// The bounds on a profile, which may come from anywhere.
const (
	maxProfileBytes  = 16 << 20
	maxProfileArrays = 64
	maxProfileValues = 1 << 20
	maxNpyHeader     = 64 << 10
)

// readArrays reads the first of the named files that exists.
func readArrays(folder fs.FS, names ...string) (arrays, error) {
	for _, name := range names {
		data, err := readProfileFile(folder, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var a arrays
		if path.Ext(name) == ".json" {
			a, err = readJSON(data)
		} else {
			a, err = readNPZ(data)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return a, nil
	}
	return nil, fmt.Errorf("there is none of %s", strings.Join(names, ", "))
}

// readProfileFile reads a file of the folder, of bounded size.
func readProfileFile(folder fs.FS, name string) ([]byte, error) {
	f, err := folder.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return readAtMost(f, maxProfileBytes, name)
}

// readAtMost reads all of r, and fails if that is more than limit bytes. name is for the error.
func readAtMost(r io.Reader, limit int64, name string) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s is larger than %d MB", name, limit>>20)
	}
	return data, err
}

// readJSON reads an object whose members are lists of numbers, or numbers. Others are left out.
func readJSON(data []byte) (arrays, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil {
		return nil, err
	}
	a := arrays{}
	for name, raw := range object {
		var list []float64
		var one float64
		switch {
		case json.Unmarshal(raw, &list) == nil && list != nil:
			a[name] = list
		case json.Unmarshal(raw, &one) == nil:
			a[name] = []float64{one}
		}
	}
	return a, nil
}

// readNPZ reads NumPy's archive of arrays: a zip of .npy files of one dimension.
func readNPZ(data []byte) (arrays, error) {
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, fmt.Errorf("read archive: %w", err)
	}
	if len(z.File) > maxProfileArrays {
		return nil, fmt.Errorf("read archive: it has %d arrays: at most %d are read", len(z.File), maxProfileArrays)
	}
	a := arrays{}
	for _, f := range z.File {
		name, ok := strings.CutSuffix(f.Name, ".npy")
		if !ok {
			continue
		}
		list, err := readMember(f)
		if err != nil {
			return nil, fmt.Errorf("read array %.40q: %w", name, err)
		}
		a[name] = list
	}
	return a, nil
}

// readMember reads one array of an .npz file, which is a zip of .npy files.
func readMember(f *zip.File) ([]float64, error) {
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	data, err := readAtMost(r, maxProfileBytes, "it")
	if err != nil {
		return nil, err
	}
	return readNPY(data)
}

// The members of an array's header, a literal of a Python dictionary.
var (
	npyType  = regexp.MustCompile(`'descr':\s*'([<|]?[fiu][0-9]+)'`)
	npyShape = regexp.MustCompile(`'shape':\s*\(\s*([0-9]*)\s*,?\s*\)`)
)

// readNPY reads an array of one dimension, or none, of little-endian numbers.
func readNPY(data []byte) ([]float64, error) {
	const magic = "\x93NUMPY"
	if len(data) < 10 || string(data[:6]) != magic {
		return nil, errors.New("it is not a NumPy array")
	}
	size, from := int(binary.LittleEndian.Uint16(data[8:])), 10
	if data[6] >= 2 {
		if len(data) < 12 {
			return nil, errors.New("its header is cut off")
		}
		size, from = int(binary.LittleEndian.Uint32(data[8:])), 12
	}

	if size > maxNpyHeader || from+size > len(data) {
		return nil, errors.New("its header is cut off")
	}
	header, values := data[from:from+size], data[from+size:]
	kind, shape := npyType.FindSubmatch(header), npyShape.FindSubmatch(header)
	if kind == nil || shape == nil {
		return nil, errors.New("it must be a list of little-endian numbers")
	}

	n := 1 // an array without dimensions is one number
	if len(shape[1]) > 0 {
		var err error
		n, err = strconv.Atoi(string(shape[1]))
		if err != nil || n > maxProfileValues {
			return nil, fmt.Errorf("it may have %d values", maxProfileValues)
		}
	}
	return readValues(values, strings.TrimLeft(string(kind[1]), "<|"), n)
}

// readValues reads n numbers of a kind.
func readValues(data []byte, kind string, n int) ([]float64, error) {
	read, width := npyNumbers(kind)
	if read == nil {
		return nil, fmt.Errorf("its numbers are of kind %q: f4, f8, i4, i8, u4 and u8 are read", kind)
	}
	if len(data) != n*width {
		return nil, fmt.Errorf("it has %d bytes for %d numbers of %d", len(data), n, width)
	}
	out := make([]float64, n)
	for i := range out {
		out[i] = read(data[i*width:])
		if !finite(out[i]) {
			return nil, fmt.Errorf("value %d is not a number", i)
		}
	}
	return out, nil
}

// npyNumbers returns how to read one number of a NumPy type, and its width in bytes; nil for an unknown type.
func npyNumbers(kind string) (read func([]byte) float64, width int) {
	le := binary.LittleEndian
	switch kind {
	case "f8":
		return func(b []byte) float64 { return math.Float64frombits(le.Uint64(b)) }, 8
	case "f4":
		return func(b []byte) float64 { return float64(math.Float32frombits(le.Uint32(b))) }, 4
	case "i8":
		return func(b []byte) float64 { return float64(int64(le.Uint64(b))) }, 8 //nolint:gosec // as it was written
	case "i4":
		return func(b []byte) float64 { return float64(int32(le.Uint32(b))) }, 4 //nolint:gosec // as it was written
	case "u8":
		return func(b []byte) float64 { return float64(le.Uint64(b)) }, 8
	case "u4":
		return func(b []byte) float64 { return float64(le.Uint32(b)) }, 4
	}
	return nil, 0
}
