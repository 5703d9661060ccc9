// Command image packs programs for several architectures into one container image, without a container engine:
//
//	image --out FILE --name NAME:TAG --revision COMMIT --created TIME ARCHITECTURE=PROGRAM...
//
// The image has the program at /stator, and root certificates, which a download of tokenizers needs. It is a tar of an OCI image
// layout, and the same inputs make the same bytes. Beside it goes an SPDX list of the modules of each program.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	oci    = "application/vnd.oci.image."
	labels = "org.opencontainers.image."
)

// object is a JSON object. Its keys are sorted, so its encoding is reproducible.
type object = map[string]any

type image struct {
	blobs   map[string][]byte // by digest
	created time.Time
	labels  map[string]string
}

func main() {
	out := flag.String("out", "", "`file` of the image; SPDX files go beside it")
	name := flag.String("name", "", "`name` of the image with its tag, such as example.com/stator:v1.2.3")
	revision := flag.String("revision", "", "`commit` of the sources")
	created := flag.String("created", "", "`time` of the commit (RFC 3339)")
	flag.Parse()
	if err := pack(*out, *name, *revision, *created, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// pack writes the image and the SPDX files.
func pack(out, name, revision, created string, programs []string) error {
	tagAt := strings.LastIndex(name, ":")
	if out == "" || tagAt < 0 || len(programs) == 0 {
		return fmt.Errorf("name the image with --out and --name NAME:TAG, and at least one program: see --help")
	}
	at, err := time.Parse(time.RFC3339, created)
	if err != nil {
		return fmt.Errorf("--created is %q: use a time such as 2026-01-31T12:00:00Z", created)
	}
	tag := name[tagAt+1:]
	m := &image{blobs: map[string][]byte{}, created: at.UTC(), labels: map[string]string{
		labels + "title": "stator", labels + "description": "A cache-aware router for LLM engines behind Envoy",
		labels + "source": "https://github.com/stator-project/stator", labels + "licenses": "Apache-2.0",
		labels + "version": tag, labels + "revision": revision, labels + "created": at.UTC().Format(time.RFC3339),
	}}

	var manifests []object
	for _, p := range programs {
		architecture, path, ok := strings.Cut(p, "=")
		program, err := os.ReadFile(path)
		if !ok || err != nil {
			return fmt.Errorf("%q is not ARCHITECTURE=PROGRAM: %w", p, err)
		}
		info, err := buildinfo.Read(bytes.NewReader(program))
		if err != nil {
			return err
		}
		manifests = append(manifests, m.manifest(architecture, program))
		list := strings.TrimSuffix(out, ".tar") + "." + architecture + ".spdx.json"
		if err := os.WriteFile(list, m.modules(info, tag, program), 0o644); err != nil {
			return err
		}
	}

	const kind = "index.v1+json"
	index := m.add(kind, object{"schemaVersion": 2, "mediaType": oci + kind, "manifests": manifests, "annotations": m.labels})
	index["annotations"] = object{labels + "ref.name": tag, "io.containerd.image.name": name}
	return m.write(out, encode(object{"schemaVersion": 2, "mediaType": oci + kind, "manifests": []object{index}}))
}

// manifest adds the image of one architecture, and returns its descriptor.
func (m *image) manifest(architecture string, program []byte) object {
	layer := m.layer(program)
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, _ = zip.Write(layer)
	_ = zip.Close()
	config := m.add("config.v1+json", object{
		"os": "linux", "architecture": architecture, "created": m.created,
		"config": object{"User": "65532:65532", "Entrypoint": []string{"/stator"}, "Labels": m.labels},
		"rootfs": object{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	manifest := m.add("manifest.v1+json", object{
		"schemaVersion": 2, "mediaType": oci + "manifest.v1+json", "config": config,
		"layers": []object{m.addBytes("layer.v1.tar+gzip", packed.Bytes())}, "annotations": m.labels,
	})
	manifest["platform"] = object{"os": "linux", "architecture": architecture}
	return manifest
}

// layer returns the tar of the file system.
func (m *image) layer(program []byte) []byte {
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil { // a PEM file cannot express a constraint
			_ = pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}

	var b bytes.Buffer
	t := tar.NewWriter(&b)
	for _, folder := range []string{"etc/", "etc/ssl/", "etc/ssl/certs/"} {
		m.entry(t, folder, nil, 0o755)
	}
	m.entry(t, "etc/ssl/certs/ca-certificates.crt", roots.Bytes(), 0o644)
	m.entry(t, "stator", program, 0o755)
	_ = t.Close()
	return b.Bytes()
}

// entry adds a file, or a folder if its name ends in a slash. Writes to a buffer do not fail.
func (m *image) entry(t *tar.Writer, name string, data []byte, mode int64) {
	_ = t.WriteHeader(&tar.Header{Name: name, Size: int64(len(data)), Mode: mode, ModTime: m.created, Format: tar.FormatUSTAR})
	_, _ = t.Write(data)
}

// modules returns the modules that a program was built from, as SPDX 2.3.
func (m *image) modules(info *buildinfo.BuildInfo, version string, program []byte) []byte {
	sum := sha256.Sum256(program)
	packages := []object{{
		"SPDXID": "SPDXRef-program", "name": "stator", "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
		"licenseDeclared": "Apache-2.0", "checksums": []object{{"algorithm": "SHA256", "checksumValue": hex.EncodeToString(sum[:])}},
	}}
	var contains []object
	add := func(module, version string) {
		id := fmt.Sprintf("SPDXRef-module-%d", len(packages))
		packages = append(packages, object{
			"SPDXID": id, "name": module, "versionInfo": version, "downloadLocation": "NOASSERTION", "filesAnalyzed": false,
			"externalRefs": []object{{
				"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": "pkg:golang/" + module + "@" + version}},
		})
		contains = append(contains, object{"spdxElementId": "SPDXRef-program", "relationshipType": "CONTAINS", "relatedSpdxElement": id})
	}

	add("std", strings.TrimPrefix(info.GoVersion, "go"))
	for _, dep := range info.Deps {
		add(dep.Path, dep.Version)
	}
	return encode(object{
		"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": "stator " + version,
		"documentNamespace": "https://github.com/stator-project/stator/spdx/" + hex.EncodeToString(sum[:]),
		"creationInfo":      object{"created": m.created.Format(time.RFC3339), "creators": []string{"Tool: stator-deploy-image"}},
		"documentDescribes": []string{"SPDXRef-program"}, "packages": packages, "relationships": contains,
	})
}

// add adds a blob, and returns its descriptor.
func (m *image) add(kind string, o object) object { return m.addBytes(kind, encode(o)) }

func (m *image) addBytes(kind string, data []byte) object {
	m.blobs[digest(data)] = data
	return object{"mediaType": oci + kind, "digest": digest(data), "size": len(data)}
}

// write writes the layout.
func (m *image) write(path string, index []byte) error {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	m.entry(t, "oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644)
	m.entry(t, "index.json", index, 0o644)
	for _, d := range slices.Sorted(maps.Keys(m.blobs)) {
		m.entry(t, "blobs/sha256/"+strings.TrimPrefix(d, "sha256:"), m.blobs[d], 0o644)
	}
	_ = t.Close()
	return os.WriteFile(path, b.Bytes(), 0o644)
}

func digest(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

func encode(o object) []byte {
	data, _ := json.Marshal(o) // no value can fail
	return data
}
