package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPack packs this test's program twice, and unpacks the image as a container engine would.
func TestPack(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	image := packed(t, program)
	if !bytes.Equal(image, packed(t, program)) {
		t.Error("the same program makes two different images")
	}

	layout := untar(t, bytes.NewReader(image))
	var index, platforms struct{ Manifests []descriptor }
	decode(t, layout["index.json"], &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Annotations["io.containerd.image.name"] != "example.com/stator:v1" {
		t.Fatalf("the layout has %+v, not one named image", index)
	}
	decode(t, blob(layout, index.Manifests[0]), &platforms)
	if len(platforms.Manifests) != 2 || platforms.Manifests[1].Platform.Architecture != "arm64" {
		t.Fatalf("the image has the platforms %+v", platforms)
	}

	for _, d := range platforms.Manifests {
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		decode(t, blob(layout, d), &manifest)
		var config struct {
			Architecture string
			Config       struct {
				User       string
				Entrypoint []string
				Labels     map[string]string
			}
			RootFS struct {
				DiffIDs []string `json:"diff_ids"`
			}
		}
		decode(t, blob(layout, manifest.Config), &config)
		c := config.Config
		if config.Architecture != d.Platform.Architecture || c.User != "65532:65532" || len(c.Entrypoint) != 1 || c.Entrypoint[0] != "/stator" ||
			c.Labels["org.opencontainers.image.revision"] != "abc" {
			t.Errorf("the configuration is %+v", config)
		}

		unzipped, err := gzip.NewReader(bytes.NewReader(blob(layout, manifest.Layers[0])))
		if err != nil {
			t.Fatal(err)
		}
		layer, err := io.ReadAll(unzipped)
		if err != nil || digest(layer) != config.RootFS.DiffIDs[0] {
			t.Errorf("the layer is not the one of the configuration: %v", err)
		}
		files := untar(t, bytes.NewReader(layer))
		if want, err := os.ReadFile(program); err != nil || !bytes.Equal(files["stator"], want) {
			t.Errorf("/stator is not the program: %v", err)
		}
		if roots := strings.Count(string(files["etc/ssl/certs/ca-certificates.crt"]), "BEGIN CERTIFICATE"); roots < 50 {
			t.Errorf("the image has %d root certificates", roots)
		}
	}
}

type descriptor struct {
	Digest      string
	Platform    struct{ Architecture string }
	Annotations map[string]string
}

// packed packs one program for two architectures, and checks the list of modules.
func packed(t *testing.T, program string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.tar")
	err := pack(out, "example.com/stator:v1", "abc", "2026-01-31T12:00:00+01:00", []string{"amd64=" + program, "arm64=" + program})
	if err != nil {
		t.Fatal(err)
	}

	var list struct {
		Packages []struct{ Name, VersionInfo string }
	}
	data, err := os.ReadFile(strings.TrimSuffix(out, ".tar") + ".amd64.spdx.json")
	if err != nil {
		t.Fatal(err)
	}
	decode(t, data, &list)
	if n := len(list.Packages); n < 3 || !strings.HasPrefix(list.Packages[n-1].VersionInfo, "v0.") {
		t.Errorf("the list of modules is %+v", list)
	}

	data, err = os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestPackRefuses(t *testing.T) {
	for _, c := range []struct{ name, created, program, want string }{
		{"stator", "2026-01-31T12:00:00Z", "amd64=x", "--name NAME:TAG"},
		{"stator:v1", "yesterday", "amd64=x", `--created is "yesterday"`},
		{"stator:v1", "2026-01-31T12:00:00Z", "x", "not ARCHITECTURE=PROGRAM"},
	} {
		err := pack(filepath.Join(t.TempDir(), "image.tar"), c.name, "abc", c.created, []string{c.program})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func blob(layout map[string][]byte, d descriptor) []byte {
	return layout["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
}

func untar(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for archive := tar.NewReader(r); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name], err = io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
	}
}

func decode(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%v: %.200s", err, data)
	}
}
